-- SPDX-License-Identifier: MIT
-- What is installed works from where it is: the command, the modules in plain lua5.4, the C library through
-- pkg-config, the example of embedding; uninstall leaves nothing; the Debian package and the source rock hold it all.

local T = require "perilune"
local term = require "spec.support.terminal"
local q = term.quote

local root = os.getenv "PERILUNE_ROOT" or "."
local build = os.getenv "PERILUNE_BUILD" or root .. "/build"

local function has(program) return select(2, term.shell("command -v " .. program)) == 0 end
local function ok(command)
  local text, status = term.shell(command)
  assert.equal(0, status, command .. "\n" .. text)
  return text
end

describe("an installed perilune", function()
  local missing = term.missing("plain", "perilune", "cmake")
  if missing then
    return it("is installed", function() pending(missing) end)
  end
  local dir, remove, prefix
  setup(function()
    dir, remove = term.folder()
    prefix = dir .. "/prefix"
    ok(("cmake --install %s --prefix %s"):format(q(build), q(prefix)))
  end)
  teardown(function() remove() end)

  local function pkg(args) return ("PKG_CONFIG_PATH=%s/lib/pkgconfig pkg-config %s"):format(q(prefix), args) end

  it("runs: the command, help, and plain lua5.4", function()
    assert.equal("{1., 1.}  -- f32[2] cpu\n", ok(("cd / && %s/bin/perilune -e 'print(require \"perilune\".ones(2))'")
      :format(q(prefix))))
    assert.truthy(ok(("echo 'T.ones(2):sum()' | %s/bin/perilune"):format(q(prefix))):find("2.", 1, true))
    assert.truthy(ok(("%s/bin/perilune help nn.Linear"):format(q(prefix))):find("in_features", 1, true))
    if has "lua5.4" then
      assert.equal("2.0\n", ok(([[cd / && LUA_PATH='%s/share/lua/5.4/?.lua;%s/share/lua/5.4/?/init.lua' \
        LUA_CPATH='%s/lib/lua/5.4/?.so' lua5.4 -e 'print(require "perilune".ones(2):sum():item())']]):format(prefix,
        prefix, prefix)))
    end
    for _, file in ipairs { "share/man/man1/perilune.1", "share/doc/perilune/html/index.html",
      "share/perilune/luals/perilune.lua",
      "share/bash-completion/completions/perilune",
      "share/zsh/vendor-completions/_perilune", "share/fish/vendor_completions.d/perilune.fish",
      "include/perilune/perilune.h", "share/doc/perilune/CHANGELOG.md" } do
      assert.truthy(#term.read(prefix .. "/" .. file) > 50, file)
    end
  end)

  it("has one version", function()
    local version = term.read(root .. "/CMakeLists.txt"):match "project%(perilune VERSION ([%d.]+)"
    assert.equal(version, T.version)
    assert.truthy(ok(("%s/bin/perilune --version"):format(q(prefix))):find("perilune " .. version, 1, true))
    assert.truthy(term.read(prefix .. "/share/man/man1/perilune.1"):find("perilune " .. version, 1, true))
    assert.truthy(term.read(root .. "/CHANGELOG.md"):find("\n## " .. version, 1, true))
    if has "pkg-config" then assert.equal(version .. "\n", ok(pkg "--modversion perilune")) end
  end)

  it("serves C programs through pkg-config", function()
    local lacks = term.missing("pkg-config", "cc")
    if lacks then return pending(lacks) end
    ok(("cp %s/spec/link/train.c %s/c.c"):format(q(root), q(dir)))
    ok(("cd %s && cc -std=gnu11 -include perilune.h c.c -o c $(%s)"):format(q(dir), pkg "--cflags --libs perilune"))
    ok(dir .. "/c")
    ok(("cd %s && cc -Wall -Wextra -Werror %s/adam.c -o adam $(%s) && ./adam"):format(q(dir),
      q(prefix .. "/share/doc/perilune/embed"), pkg "--cflags --libs perilune"))
    if select(2, term.shell "pkg-config --exists lua5.4") ~= 0 then return pending "pkg-config knows no lua5.4" end
    local doc = prefix .. "/share/doc/perilune/embed"
    ok(([[cd %s && cc -Wall -Wextra -Werror %s/embed.c -o embed $(pkg-config --cflags --libs lua5.4) -lm \
      -DLUA_PATH_="\"$(%s)\"" -DLUA_CPATH_="\"$(%s)\""]]):format(q(dir), q(doc), pkg "--variable=lua_path perilune",
      pkg "--variable=lua_cpath perilune"))
    assert.truthy(ok(("cd / && %s/embed %s/model.lua"):format(q(dir), q(doc))):find "\nok\n$")
  end)

  it("goes away without a trace, and nothing else does", function()
    ok(("cp -r %s %s/kept && echo mine > %s/bin/mine && mkdir %s/lib/empty"):format(q(prefix), q(dir), q(prefix), q(
      prefix)))
    -- making a package installs, too: into a folder of its own, which is not what uninstall takes away
    ok(("cp %s/install_manifest.txt %s/manifest && echo /tmp/nowhere/perilune > %s/install_manifest.txt"):format(q(
      build),
      q(dir), q(build)))
    ok(("cmake --build %s --target uninstall"):format(q(build)))
    ok(("mv %s/manifest %s/install_manifest.txt"):format(q(dir), q(build)))
    assert.equal("bin\nbin/mine\nlib\nlib/empty\n", (ok(("cd %s && find . -mindepth 1 | sed 's|^./||' | sort"):format(
      q(prefix)))))
    ok(("rm -r %s && mv %s/kept %s"):format(q(prefix), q(dir), q(prefix)))
  end)

  it("leaves the prefix where it stands, though it is empty", function()
    local own = dir .. "/opt/perilune"
    ok(("mkdir -p %s/bin && touch %s/bin/perilune && printf '%%s\\n' %s %s/bin/perilune > %s/l"):format(q(own), q(
      own), q(own), q(own), q(dir)))
    ok(("cmake -DMANIFEST=%s/l -P %s/cmake/uninstall.cmake"):format(q(dir), q(root)))
    assert.equal("opt\nopt/perilune\n", ok(("cd %s && find opt | sort"):format(q(dir))))
  end)

  it("leaves what a Debian package owns by now", function()
    if not os.execute "command -v dpkg-query > /dev/null" then return pending "dpkg-query is not there" end
    local system, away = term.folder()
    ok(("cd %s && mkdir -p usr/bin usr/share/perilune var/lib/dpkg/info && touch usr/bin/perilune usr/share/perilune/a "
      .. "var/lib/dpkg/info/perilune.list && echo 1 > var/lib/dpkg/info/format"):format(q(system)))
    term.write(system .. "/var/lib/dpkg/status", "Package: perilune\nStatus: install ok installed\n"
      .. "Maintainer: a <b@c>\nArchitecture: all\nVersion: 1\nDescription: x\n\n")
    term.write(system .. "/var/lib/dpkg/info/perilune.list", "/.\n/usr\n/usr/bin\n/usr/bin/perilune\n")
    term.write(system .. "/l", system .. "/usr\n/usr/bin/perilune\n/usr/share/perilune/a\n")
    local command = "DESTDIR=%s cmake -DMANIFEST=%s/l -P %s/cmake/uninstall.cmake"
    local text = ok(command:format(q(system), q(system), q(root)))
    assert.truthy(text:find("kept " .. system .. "/usr/bin/perilune, which belongs to a Debian package", 1, true), text)
    assert.equal("", ok(("cat %s/usr/bin/perilune"):format(q(system))))
    assert.is_nil(io.open(system .. "/usr/share/perilune/a"))
    away()
  end)

  it("is packed only where its dependencies can be told", function()
    local cmake = ok("command -v cmake"):match "[^\n]+"
    local text, status = term.shell((
      "PATH=%s %s -DCPACK_GENERATOR=DEB -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF -P %s/cmake/package_tools.cmake"):format(
      q(dir), q(cmake), q(root)))
    assert.not_equal(0, status)
    assert.truthy(text:gsub("%s+", " "):find(
      "the package needs file dpkg-shlibdeps, which is not here: apt-get install file "
      .. "dpkg-dev", 1, true), text)
  end)

  it("is found from a checkout that was moved", function()
    if not build:find(root, 1, true) and root ~= "." then return pending "the build is not below the checkout" end
    ok((
      "mkdir -p %s/moved/lua && cp -r %s/lua/perilune %s/moved/lua && mkdir %s/moved/build && "
      .. "cp -r %s/bin %s/lib %s/share %s/moved/build")
      :format(q(dir), q(root), q(dir), q(dir), q(build), q(build), q(build), q(dir)))
    assert.equal("../../lua/perilune\n", ok(("readlink %s/moved/build/share/perilune"):format(q(dir))))
    assert.truthy(ok((
      "cd / && env -u LUA_PATH_5_4 -u LUA_CPATH_5_4 %s/moved/build/bin/perilune -e 'print(package.searchpath("
      .. "[[perilune]], package.path), require([[perilune]]).ones(2):sum():item())'"):format(q(dir))):find(
      "moved/build/share/perilune/init.lua\t2.0", 1, true))
  end)

  it("comes as a Debian package", function()
    local lacks = term.missing("dpkg-deb", "dpkg-shlibdeps")
    if lacks then return pending(lacks) end
    ok(("cd %s && cpack -G DEB --config CPackConfig.cmake -B %s/package"):format(q(build), q(dir)))
    local deb = ok(("ls %s/package/*.deb"):format(q(dir))):match "[^\n]+"
    local info = ok("dpkg-deb --info " .. q(deb))
    assert.truthy(info:find("Version: " .. T.version, 1, true), info)
    -- what the linker recorded is what the package asks for: no shared Lua where the command holds the archive
    assert.truthy(info:find("Depends: [^\n]*libc6"), info)
    local shared = ok(("readelf -d %s/bin/perilune"):format(q(build))):find("NEEDED[^\n]*liblua") ~= nil
    assert.equal(shared, info:find("Depends: [^\n]*liblua") ~= nil, info)
    local real = ok "id -u" == "0\n" -- dpkg itself wants root, though all that it writes is below a folder
    if real then
      local db = dir .. "/root/var/lib/dpkg"
      ok(("mkdir -p %s/info %s/updates && : > %s/status"):format(q(db), q(db), q(db)))
      ok(("dpkg --root=%s --force-depends --force-script-chrootless --log=/dev/null -i %s"):format(q(dir .. "/root"), q(
        deb)))
    else
      ok(("dpkg-deb -x %s %s/root"):format(q(deb), q(dir)))
    end
    assert.equal("3.0\n", ok(("cd / && %s/root/usr/bin/perilune -e 'print(require \"perilune\".ones(3):sum():item())'")
      :format(q(dir))))
    if not real then return end
    -- the same files, installed again by hand: uninstall takes none of the package's away, and nothing else stays
    local before = ok(("cd %s/root && find . | sort"):format(q(dir)))
    ok(("DESTDIR=%s/root cmake --install %s --prefix /usr && touch %s/root/usr/bin/mine"):format(q(dir), q(build), q(
      dir)))
    ok(("DESTDIR=%s/root cmake --build %s --target uninstall"):format(q(dir), q(build)))
    ok(("rm %s/root/usr/bin/mine"):format(q(dir)))
    assert.equal(before, (ok(("cd %s/root && find . | sort"):format(q(dir)))))
    assert.equal("", (ok(("dpkg --root=%s/root -V perilune"):format(q(dir)))))
  end)

  it("comes as a source rock", function()
    local lacks = term.missing "luarocks"
    if lacks then return pending(lacks) end
    ok(("cmake -DSOURCE=%s -DOUT=%s/rock -DVERSION=%s -DLUAROCKS=luarocks -P %s/cmake/rock.cmake"):format(
      q(ok(("realpath %s"):format(q(root))):match "[^\n]+"), q(dir), T.version, q(root)))
    local rock = ("%s/rock/perilune-%s-1.src.rock"):format(dir, T.version)
    ok(("cd %s/rock && unzip -q -o %s && tar xzf perilune-%s.tar.gz"):format(q(dir), q(rock), T.version))
    local inside = ("%s/rock/perilune-%s/"):format(dir, T.version)
    for _, file in ipairs { "CMakeLists.txt", "lua/perilune/init.lua", "engine/ops/ops.def", "LICENSE" } do
      assert.equal(term.read(root .. "/" .. file), term.read(inside .. file), file)
    end
    assert.truthy(term.read(("%s/rock/perilune-%s-1.rockspec"):format(dir, T.version)):find(
      ('version = "%s-1"'):format(T.version), 1, true))
    if not os.getenv "PERILUNE_SLOW" then return end -- compiles everything: minutes
    ok(([[cd / && env http_proxy=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1 luarocks --lua-version=5.4 \
      --tree %s/tree install %s]]):format(q(dir), q(rock)))
    assert.truthy(ok(("cd / && %s/tree/bin/perilune -e 'print(require \"perilune\".version)'"):format(q(dir))))
    ok(("luarocks --lua-version=5.4 --tree %s/tree remove perilune"):format(q(dir)))
    assert.equal("", (ok(("find %s/tree -name '*perilune*'"):format(q(dir)))))
  end)
end)

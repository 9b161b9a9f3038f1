-- SPDX-License-Identifier: MIT
-- What `perilune --help`, `perilune COMMAND --help` and the man page say: name, how it is called, one line, the rest.
-- In this order. values: what the options take that take one of a few words, for completion in shells.
local pages = {
  { "repl", "[repl]", "the prompt: reads, evaluates and shows inputs",
    [[Reads inputs from the terminal, or from standard input when that is none. ? at the prompt introduces it; :help
lists its commands. History is in $XDG_STATE_HOME/perilune/history (~/.local/state by default), keys can be bound
in ~/.editrc. NO_COLOR turns colours off. From a pipe, the exit status is 1 if any input raised an error.]] },
  { "run", "run FILE [--] ARGS...", "runs a script; FILE - is standard input",
    [[The arguments are in arg[1]... and in `...`. `perilune FILE.lua ARGS...` does the same. The first Ctrl-C raises an
error in the script (exit status 130), a second one ends the process.]] },
  { "-e", "-e CODE ARGS...", "runs code",
    "The arguments are in arg[1]... and in `...`." },
  { "bench", "bench [OPTIONS]", "measures this machine",
    [[In a checkout, or with one in the folder above, runs the workloads of bench/ and prints a table (--only NAME ...,
--threads N, --list; --json FILE writes JSON lines as well, --json - prints them instead of the table); elsewhere a few
probes, each the median of five samples.]] },
  { "info", "info", "version, libraries, threads: the block for a bug report",
    "" },
  { "peek", "peek [--header] FILE...", "what is in a file: tensors with statistics, metadata, events",
    [[Knows safetensors, PyTorch, GGUF, ONNX, npy, npz, IDX (also gzipped), PNG, JPEG and TensorBoard event files by
their first bytes, and models in shards by their index or folder. For each tensor: dtype, shape, range, mean,
standard deviation, count of NaN. --header reads no elements of safetensors and GGUF. Exit status 1 if a file
cannot be read.]] },
  { "help", "help [NAME...]", "what a name is: perilune help softmax",
    [[NAME is an op, a function of T, a path such as nn.Linear, a pattern such as 'soft*', or a topic, which lists its
names. Words that are no names are searched for: perilune help learning rate. Without a name, lists the topics; --names
lists all names, one a line.
Exit status 1 if there is no such name.]] },
  { "doctest", "doctest [--verbose] FILE.md...", "runs the Lua blocks of Markdown files",
    [[Compares what each block prints with the lines behind `-->` in it. Blocks that do not load perilune themselves get
T, nn and optim. An HTML comment above a block marks it: <!-- raises --> says that each piece up to a line of `-->`
raises that error, <!-- not run: WHY --> leaves it out. Exit status 1 if a block fails, 2 if a file cannot be read.]] },
  { "new", "new NAME", "makes a folder with a small project that trains",
    "A script with options, a module, a check and a README. The folder must not exist." },
  { "diff", "diff [--atol X] [--rtol X] [--any-dtype] A B", "compares the tensors of two files",
    [[Two elements are equal where |a - b| <= atol + rtol |b|, and NaN equals NaN; both are 0 by default. --any-dtype
compares values across dtypes. Exit status 0: equal; 1: different, and the lines say where; 2: a file cannot be
read.]] },
  { "convert", "convert [--type TYPE] [--dtype DTYPE] [--size NAME=N] A B",
    "writes the tensors of a file in another format",
    [[B's ending says which: .safetensors, .gguf or .npz; A is any file that peek knows, an index of shards or a folder.
.graph makes of an ONNX file a graph that libperilune runs without Lua, in B and B.safetensors; sizes that the file
leaves free stay free, from 1 to 4096, or as --size NAME=LEAST..MOST says; --size NAME=N fixes one. A size without a
name is called INPUT:DIMENSION.
--type Q8_0 (Q5_1, Q5_0, Q4_1, Q4_0, F16, BF16, F32) is what tensors become in a GGUF file: those of floats with two
dimensions or more and rows of whole blocks. From GGUF to GGUF all others keep their bytes. --dtype f16 is what
tensors of floats become. Metadata goes along where B has room for it; nested values of PyTorch stay nested in
safetensors, elsewhere names are joined by dots. B is replaced only when all is written. Exit status 1 if a file
cannot be read or written.]],
    values = { type = "Q8_0 Q5_1 Q5_0 Q4_1 Q4_0 F16 BF16 F32", dtype = "f16 bf16 f32 f64" } },
  { "build", "build MODEL -o OUT [--static] [--name NAME] [--size NAME=N]",
    "a program or library that runs one model, without Lua",
    [[MODEL is a saved graph (T.save_graph) or an ONNX file. OUT ends in .so, a shared library, or .a, a static one,
with a header beside it; else it is a program, which reads the bytes of inputs from files and writes those of outputs
(OUT --info lists them, OUT --time N measures). The plan is compiled in, weights are in the file, and of the kernels it
has those that the plan names. Results have the bits of T.jit. A C compiler is needed: cc, or what CC names.
  --static    no other library: a program is linked statically, and kernels never open oneDNN or OpenBLAS; then
              the bits are those of T.jit where PERILUNE_LIBRARIES=none is set
  --name NAME of the functions, NAME_open, NAME_run ...: by default OUT's
  --size NAME=N    of each size that MODEL leaves free; a program's are fixed
Exit status 1 if the model cannot be read or what is made cannot be linked.]] },
  { "generate", "generate [OPTIONS] MODEL PROMPT", "a model goes on with a text",
    [[MODEL is a folder of transformers (config.json, weights, tokenizer) or a GGUF file. PROMPT - is standard input.
Writes what comes behind the prompt, as it comes: the best token each time, or drawn ones with one of --temperature,
--top-k, --top-p, --min-p.
  --max-new-tokens N  how many at most (64)
  --temperature X, --top-k N, --top-p X, --min-p X, --repetition-penalty X    as T.models.generate has them; 0 as
                      temperature is the best token each time
  --seed N            the same draws again
  --stop TEXT         ends where TEXT would come; several times for several texts
  --tokenizer PATH    the tokenizer's folder or file: for a GGUF file, whose own is not read, tokenizer.json
  --dtype f32         of the weights: bf16, f16, f64, or file, as stored; --device cuda runs on a GPU
The exit status is 1 if the model cannot be read or a setting does not fit it.]],
    values = { dtype = "f32 bf16 f16 f64 file", device = "cpu cuda" } },
  { "chat", "chat [OPTIONS] MODEL", "a conversation with a model",
    [[Each line is a message, and the reply comes as it is made, by the chat template that stands beside the tokenizer.
Ctrl-C stops a reply and keeps what there is of it; /reset begins anew, /system TEXT sets the system prompt and begins
anew, /exit or Ctrl-D ends. What was typed is in $XDG_STATE_HOME/perilune/chat. From a pipe, each line is answered
without a prompt.
  --system TEXT       the system prompt
  --template FILE     a chat template (Jinja) for a model that has none
  --max-new-tokens N  how many for one reply at most (512)
and the other options of perilune generate; without --temperature and the like those of generation_config.json.]] },
  { "serve", "serve [OPTIONS] MODEL", "a model behind OpenAI's API, for other programs",
    [[Answers POST /v1/completions, /v1/chat/completions (both with "stream": true), /v1/embeddings (the mean of the
last hidden states), GET /v1/models and /health, as the clients of that API expect; what a request asks for and this
server would not heed is refused by name. Replies are made in turns, one token each. Where PERILUNE_API_KEY is set,
requests need it. A connection that is cut ends its reply. Needs libmicrohttpd.
  --host ADDR         where it listens (127.0.0.1, which only this machine can reach)
  --port N            8712, or another free one
  --name NAME         of the model in requests (its folder's name)
  --max-new-tokens N  how many a request may ask for at most
  --max-streams N     replies that are made in turns (16)
  --max-queue N       requests that wait for one of these (64); further ones are answered 503
  --timeout SECONDS   for a reply (600)
  --tokenizer PATH, --template FILE, --dtype f32, --device cuda    as for perilune chat]] },
  { "watch", "watch [--port N] DIR", "a page on this machine that shows trainings while they run",
    [[Shows the logs below DIR while they grow: CSV and JSON lines (T.log.csv, T.log.jsonl), event files of TensorBoard
(T.log.tensorboard) with their images, and PNG and JPEG files. A run of T.fit that has a log among its callbacks can be
paused and stopped from there, if it is this user's. The page is on 127.0.0.1, port 8711 or another free one (--port N
takes that one), works without a network, and answers only to who has the address that is printed. From another
machine: ssh -L 8711:127.0.0.1:8711. Needs libmicrohttpd.]] },
  { "launch", "launch [-n N] [OPTIONS] FILE [--] ARGS...", "runs a script in several processes that train together",
    [[Each of the N processes (-n; 1 for each GPU or core without it) runs FILE and joins the others with
T.distributed.init_process_group(). As under torchrun, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT are set in each.
  --hosts a:4,b:4     machines and how many processes each takes; the program and FILE are at the same place on all
  --hostfile PATH     the same from a file of mpirun's
  --threads K         threads for each process (OMP_NUM_THREADS; without it, cores / processes of a machine)
  --tag               each line of output begins with the rank that wrote it
  --env NAME[=VALUE]  takes a setting along to other machines (PERILUNE_*, LUA_*, OMP_*, CUDA_* and NCCL_* go anyway)
  --master-addr ADDR, --master-port PORT    for scripts that read MASTER_ADDR and MASTER_PORT
  --show              prints the mpirun command instead of running it
A process that fails ends all. The exit status is its status. Needs Open MPI's mpirun (Debian: openmpi-bin).]] },
  { "kernel", "kernel install|uninstall|run [OPTIONS] [FILE]", "perilune in Jupyter's notebooks",
    [[install tells Jupyter of perilune, uninstall takes that back; then `jupyter lab` offers "Lua (perilune)". Jupyter
itself starts `kernel run FILE`, where FILE says which ports to use.
  --user         for this user: $JUPYTER_DATA_DIR or ~/.local/share/jupyter (what happens without options)
  --prefix DIR   below DIR, such as a virtual environment or /usr/local
  --name NAME    the kernel's name for Jupyter (perilune)
Needs ZeroMQ when perilune is built (Debian: libzmq3-dev). Exit status 1 if it cannot be done.]] },
}

pages.exits = [[
0 all went well; 1 an error in the script (message and traceback on standard error), a difference found, or output
that could not be written; 2 wrong usage; 130 ended by Ctrl-C.]]

return pages

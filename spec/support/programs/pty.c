/* SPDX-License-Identifier: MIT
 * pty STEPS COMMAND ARGS...: runs a command on a terminal of its own and plays a file of steps:
 *   send TEXT     types it; \n \t \e \\ and \xHH are escapes
 *   expect TEXT   waits until that is printed (behind what earlier expects found); a minute at most
 *   ready         waits until the command reads single keys, as a line editor does
 *   running       waits until it does not, so that Ctrl-C is a signal
 *   pause MS      lets time pass
 *   size COLUMNS  resizes the terminal
 *   end           waits for the end of the command
 * Prints what the command printed, then a line `== status N` (128 + n for a signal n), and for each expect a line
 * `== NUMBER MS` with the milliseconds since the step before it, without those in which the command or this program were
 * ready but other programs had the processor. Status 1 and `== missing TEXT` when an expect fails. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 60000, MAX_LINE = 70000 };

static char *seen;
static size_t n_seen, room, from;
static int master;
static pid_t child;
static bool gone;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* How long a process has waited for a processor; 0 where the kernel does not say. */
static double queued_ms(pid_t pid) {
  char path[64];
  unsigned long long run, wait = 0;
  snprintf(path, sizeof path, "/proc/%ld/schedstat", (long)pid);
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  if (fscanf(f, "%llu %llu", &run, &wait) != 2) wait = 0;
  fclose(f);
  return (double)wait * 1e-6;
}

/* Takes what the command prints within `ms`; false when nothing came. */
static bool pump(int ms) {
  struct pollfd p = {.fd = master, .events = POLLIN};
  if (gone || poll(&p, 1, ms) <= 0) return false;
  if (room - n_seen < 65536) {
    room = 2 * room + 131072;
    seen = realloc(seen, room);
    if (!seen) exit(2);
  }
  ssize_t n = read(master, seen + n_seen, 65536);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return gone = true, false; /* EIO: the other side is closed */
  n_seen += (size_t)n;
  return true;
}

static size_t unescape(char *s) {
  char *out = s, *start = s;
  for (; *s; s++) {
    if (*s != '\\' || !s[1]) {
      *out++ = *s;
      continue;
    }
    s++;
    if (*s == 'x' && s[1] && s[2]) {
      char hex[3] = {s[1], s[2], 0};
      *out++ = (char)strtol(hex, NULL, 16);
      s += 2;
    } else {
      *out++ = *s == 'n' ? '\n' : *s == 't' ? '\t' : *s == 'e' ? '\033' : *s;
    }
  }
  return (size_t)(out - start);
}

static void type(const char *text, size_t n) {
  for (double start = now_ms();
       n > 0 && !gone && now_ms() - start < WAIT_MS;) { /* reading meanwhile: a full terminal would block both sides */
    ssize_t put = write(master, text, n > 512 ? 512 : n);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return;
    if (put > 0) text += put, n -= (size_t)put;
    pump(put > 0 ? 0 : 5);
  }
}

/* Waits until the terminal gives single keys (or, not single, whole lines). */
static void wait_mode(bool single) {
  struct termios t;
  for (double start = now_ms(); !gone && now_ms() - start < WAIT_MS; pump(2))
    if (tcgetattr(master, &t) == 0 && ((t.c_lflag & ICANON) == 0) == single) return;
}

static bool expect(const char *text, size_t n, int number) {
  double start = now_ms(), queued = queued_ms(child) + queued_ms(getpid());
  for (;;) {
    char *at = n_seen - from >= n ? memmem(seen + from, n_seen - from, text, n) : NULL;
    if (at) {
      from = (size_t)(at - seen) + n;
      double all = now_ms() - start, others = queued_ms(child) + queued_ms(getpid()) - queued;
      fprintf(stderr, "== %d %.1f\n", number, others < 0 || others > all ? all : all - others);
      return true;
    }
    if (now_ms() - start > WAIT_MS || (!pump(50) && gone)) return false;
  }
}

static int finish(const char *missing) {
  int status = 0;
  double start = now_ms();
  if (missing) kill(child, SIGKILL);
  while (!gone && now_ms() - start < WAIT_MS) pump(50);
  if (!gone) missing = "the end of the command", kill(child, SIGKILL);
  waitpid(child, &status, 0);
  fwrite(seen, 1, n_seen, stdout);
  fflush(stdout);
  if (missing) printf("\n== missing %s\n", missing);
  printf("\n== status %d\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  return missing ? 1 : 0;
}

int main(int argc, char **argv) {
  static char line[MAX_LINE];
  struct winsize size = {.ws_row = 24, .ws_col = 80};
  if (argc < 3) return fputs("usage: pty STEPS COMMAND ARGS...\n", stderr), 2;
  FILE *steps = fopen(argv[1], "r");
  if (!steps) return perror(argv[1]), 2;
  child = forkpty(&master, NULL, NULL, &size);
  if (child < 0) return perror("forkpty"), 2;
  if (child == 0) {
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    _exit(127);
  }
  fcntl(master, F_SETFL, fcntl(master, F_GETFL) | O_NONBLOCK);
  for (int number = 1; fgets(line, sizeof line, steps);) {
    line[strcspn(line, "\n")] = '\0';
    char *text = strchr(line, ' ');
    if (text) *text++ = '\0';
    size_t n = text ? unescape(text) : 0;
    if (strcmp(line, "send") == 0) {
      type(text, n);
    } else if (strcmp(line, "expect") == 0) {
      if (!expect(text, n, number++)) return text[n] = '\0', finish(text);
    } else if (strcmp(line, "ready") == 0 || strcmp(line, "running") == 0) {
      wait_mode(line[1] == 'e');
    } else if (strcmp(line, "pause") == 0) {
      for (double stop = now_ms() + atof(text); now_ms() < stop;) pump(5);
    } else if (strcmp(line, "size") == 0) {
      size.ws_col = (unsigned short)atoi(text);
      ioctl(master, TIOCSWINSZ, &size);
    }
  }
  fclose(steps);
  return finish(NULL);
}

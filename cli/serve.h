/*
 * serve - `forge serve`: one process of any mode, from its flags to its exit code.
 */
#ifndef FORGE_CLI_SERVE_H
#define FORGE_CLI_SERVE_H

/* argv: what follows the word `serve`. Returns the exit code: 0 ended as asked, 2 bad start. */
int fg_serve_main(int argc, const char *const *argv, const char *const *environment);

#endif

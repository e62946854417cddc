// Package cli is the command line: the commands that every main shares, how
// they reach Temporal and the export store, what they print, and the exit code
// that each outcome has.
//
// It must never decide about a box: commands send the requests of the contract
// in package box and show the answers. It must never print what a server or a
// box said without escaping it, put a secret on the command line or into an
// answer, or report an outcome as known when it is not: a request that may have
// arrived ends with its own exit code and the command that repeats it safely.
//
// cmd/boxkeeper runs [Root]; cmd/boxkeeperd adds the commands to its own with
// [Adopt]. Nothing here links the engine.
package cli

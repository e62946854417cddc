// Package secretscan finds credentials in what an export holds, and masks
// them. It reads bytes and never an archive's paths, keeps a bounded piece of
// what it reads, and never hands out a value that it found: only where it is,
// by which rule, and a keyed fingerprint.
//
// Package exports calls it, with every entry of every object.
//
// # Rules
//
// The rules are those of gitleaks, as released, in gitleaks.toml (its license
// is beside it). They are run by a matcher of our own that looks at the
// neighbourhood of a rule's keywords instead of at everything: docs/adr/0014
// says why, and a test holds it to what each regular expression finds by
// itself. To take newer rules, replace the file and run the tests.
//
// Two rules are ours: what the agent-server promises to mask in JSON, and
// therefore counts as [Found.Promised] where it stands unmasked.
//
// # Views
//
// A key in an event stands in a JSON string, which may quote a command, which
// may quote JSON again. So each piece is looked at as it is, and with its
// escapes undone, once more and once more while that changes something; and
// long runs of base64 are looked at decoded. Nothing depends on whether a file
// parses.
package secretscan

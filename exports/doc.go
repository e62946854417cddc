// Package exports keeps what must outlive a box: the verified copies of its
// conversations, and one append-only ledger per workspace. It stores both in a
// blob store and can prove them from the store alone, long after the box, the
// engine and the process that wrote them are gone.
//
// It must never overwrite or delete what it wrote (only the probe of
// [Store.Check] is removed again), never take a copy for an export before it
// was read back from the store, never hold a whole history in memory, and never
// follow what a downloaded archive says about paths: nothing is ever unpacked
// to disk. Activities call it to write; the gateway and the command line read.
//
// # Layout
//
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/conversations/<hex32>.zip
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/secrets.json
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/manifest.json
//	ledger/<workspace>/<sequence number, 8 digits>.json
//
// Every write is conditional on the key being absent, and an object becomes
// visible complete or not at all. A manifest is written last, after every
// object that it names was read back; a directory without one is the rest of
// an attempt that did not end, and is never read as an export. Where a name is
// taken by other content (a repeated attempt, a conversation that grew
// meanwhile), the next free name is used: <hex32>-2.zip, and <attempt>-2 when
// the attempt has a manifest for an older state of the history.
//
// # Manifest
//
// manifest.json is a [Manifest]: version 1, with the conversations sorted by id
// (key, bytes, sha256 and events of each, and whether an earlier export's
// object is meant), the totals, and the history digest of what the server
// counted. A reader refuses a version it does not know.
//
// # Secrets
//
// Every entry of a conversation is looked through for secrets before it is
// stored. secrets.json is a [SecretsReport]: where they stand, never what they
// are. The request's policy decides whether they are kept, masked or block the
// export; what the agent-server promised to mask is masked always. A report
// without a manifest is that of a refused export.
//
// # Ledger
//
// The kind of an entry is in the object, not in its key: the key is the lock
// that decides between two writers of one sequence number. Entries carry a sum
// of their own, so that an altered one is noticed.
package exports

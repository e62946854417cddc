// Package exports keeps what must outlive a box: the verified copies of its
// conversations and of its workspace, and one append-only ledger per workspace. It stores both in a
// blob store and can prove them from the store alone, long after the box, the
// engine and the process that wrote them are gone.
//
// It must never overwrite what it wrote, never delete it but by the two ways
// below, never take a copy for an export before it was read back from the store,
// never hold a whole history or workspace in memory, and never follow what a
// downloaded archive says about paths: it unpacks nothing to disk, and hands out
// no name that is absolute, climbs or is a link. Activities call it to write; the
// gateway and the command line read.
//
// # Layout
//
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/conversations/<hex32>.zip
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/workspace.json.zst
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/secrets.json
//	exports/<workspace>/<epoch, 4 digits>/<attempt>/manifest.json
//	chunks/<workspace>/<first 2 digits>/<sha256>
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
// # Encryption
//
// With [Keys] every object is an age file of the same name, in a layer below all
// of this. Sums and lengths are those of what is inside.
//
// # Deletion
//
// [Store.Sweep] deletes the exports of workspaces that ended long enough ago, and
// [Store.DeleteExport] one that a person was shown. Manifests go first, so that none
// ever names what is gone, and an object goes only when no manifest that stays
// names it. Ledgers are never deleted.
//
// # Manifest
//
// manifest.json is a [Manifest]: version 2, with the conversations sorted by id
// (key, bytes, sha256 and events of each, and whether an earlier export's
// object is meant), the totals, the history digest of what the server counted,
// and the workspace or why there is none. Version 1 held no workspace. A reader
// refuses a version it does not know.
//
// # Workspace
//
// The tar that the box gives is cut into chunks where its content says, each of
// them an object named by the sum of what it holds; all exports of a workspace
// share them, so one that did not change is not written again, and an export that
// broke off goes on where it was. workspace.json.zst is the index of one export:
// the chunks in order, and where each entry of the tar is; see docs/contract.md.
//
// # Reading
//
// [Store.Conversations] lists what there is, [Store.OpenConversation] opens one
// by range reads: a page of events, or a single file, takes the directory of the
// zip and little more, of an export of any size. Order and positions are stable,
// see [Conversation.Events]. What is read is checked entry by entry;
// [Store.ProveConversation], [Store.Histories] and [Store.Verify] read all of it
// and prove the sums of the manifest.
//
// # Secrets
//
// Every entry of a conversation is looked through for secrets before it is
// stored, and every file of a workspace and every object of its repositories while
// its archive is read. secrets.json is
// a [SecretsReport]: where they stand, never what they are. The request's policy
// decides whether they are kept, masked or block the export; what the agent-server
// promised to mask is masked always. In a file nothing is masked: a policy that
// keeps secrets out of the store keeps the files out. A report without a manifest
// is that of a refused export.
//
// # Ledger
//
// The kind of an entry is in the object, not in its key: the key is the lock
// that decides between two writers of one sequence number. Entries carry a sum
// of their own, so that an altered one is noticed.
package exports

// Package digitalocean is the driver whose boxes are sessions of DigitalOcean
// Managed Agents (Harness Runtime), a public preview, spoken to through godo.
//
// What it keeps at the service, one of each for a box:
//
//	session      named like the box, bk-<installation>-<workspace>-<epoch>
//	environment  bkc-<installation>-<digest of the name>-<digest of what is in it>,
//	             the immutable manifest that the session is made from
//
// The environment carries the box's variables, its secrets (write-only at the
// service), its idle timeout and keep_warm: false, so there is one for each box.
// It is also the mark: sessions have no labels, so a session of our name that was
// made from somebody else's environment is not ours. It goes with the box.
//
// The names of sessions are unique in a team while they live, which is what makes
// a create idempotent: whatever became of a call whose answer was lost, a second
// session of that name cannot come to be, and the next call looks first.
//
// What the driver must never do: send input to a session or resolve a request of
// its agent (both resume a suspended one), take a 404 for gone when it cannot
// show that it asked the right region with a token of the right team, follow a
// redirect with its token, or delete an environment that a session still uses.
//
// Nothing here was ever run against the live service. Docs of the quirks, with
// their sources and dates, are in docs/providers/digitalocean.md.
package digitalocean

// Package digitaloceantest is a fake of DigitalOcean's Managed Agents, the
// service that its API calls harness runtime: sessions, their configurations,
// and what is reached through them. It starts no sandboxes. A [Server] is an
// http.Handler with a clock of its own, a record of all requests, a bill for
// each session, and a script of faults. Tests and simulations use it; it must
// never stand in for the service in production, and it must never be kinder
// than the service is.
//
// # What it is made from
//
// The vendor's client for Go at v1.240.0, its source and fixtures; the pages
// of the documentation as of 13 November 2026 (environment spec of
// 23 September, idle timeout of 21 September, balance of 1 and 8 October,
// ingress of 6 and 13 November); the draft specification of July 2026, which
// alone lists every status; and, for tunnels and exec, the vendor's
// command-line client. Nothing here was compared with the service itself.
//
// # What it models
//
// Both prefixes, /v2/harness-runtime and /v2/agents, at the root; the host
// decides about the region. Sessions are PROVISIONING, READY or DETACHED,
// UPDATING, PAUSED, DESTROYING, DESTROYED and FAILED. Pause and resume can't be
// repeated: 409. Names are unique among what is live, without regard to case;
// paused sessions count against the quota. Lists are paged with opaque tokens,
// hide what ended unless asked, and can be behind. A session pauses by itself
// after the idle timeout of its configuration, unless it is kept warm, which is
// what the agent openhands does when the manifest doesn't say otherwise. Port
// 8000 is what [Options.AgentServer] returns, if the manifest names the
// template openhands; it is reached through the ingress URL, which a pause ends
// and which is another one after the resume, and through port-forward. There
// are checkpoints, forks and rollbacks, persistent workspaces, the balance of a
// team, changes of the live configuration, and triggers as far as that they are
// listed and wake a session.
//
// # How to reach it
//
// [Server.Transport] answers for the service's own host names, ingress URLs
// included, and what a client means to be TLS is plain on the way. A client
// that can't be given a transport uses [Server.URL], one loopback port for each
// region, and [Options.Loopback] for ingress URLs.
//
// # Time
//
// Nothing happens until the clock moves, by [Server.Advance] or by
// [Options.Tick] at each request. With [Options.Now] the clock is the caller's,
// and what is due happens when the server is next asked. A hook is called
// without the server's lock, so it may call the server.
//
// # What it leaves out
//
// These answer 501: templates; triggers but for their list, webhook providers;
// provider authorizations; image messages; streams of events; native requests
// and the cancelling of a turn; uploads, and staged uploads; manifests in the
// older format (apiVersion). MicroVMs and everything else of the vendor's API
// are not there at all. In a manifest, a key that the environment spec's page
// was not seen to have is refused, so "interactive" and "model" are unknown
// here; tools, skills, egress and permissions are read and do nothing.
//
// # What is unknown
//
// Where the service's answer is not known, an option chooses, and the standard
// is a guess: pausing what is kept warm (409), deleting what is destroyed (204)
// and reading it (the row), no balance (402, or 403), the bounds of
// idle_timeout (none), ingress below /v2/harness-runtime (served), and what
// resets the idle clock (ingress, opening a tunnel, exec, input). Guessed
// without an option: that a revoked ingress host answers 404, and one that is
// PENDING 503; that ingress keeps the account's token to itself; that a
// checkpoint, fork or rollback under way refuses a pause; that deleting
// a FAILED or UPDATING session works; that DESTROYING is listed; that names
// are unique in a region and a quota spans all of them; that an exec needs a
// running session and wakes none; that provisioning is not billed as running;
// what kind of agent OpenHands sessions report; the version that a flat
// manifest is told with; the order of lists (the newest first).
package digitaloceantest

// Package box is the domain of boxkeeper: what a box is, what may happen to
// it, and when. All rules are pure functions here: they take facts and a time
// and answer with a step and a reason. The package imports the standard
// library only, does no I/O and never reads a clock.
//
// Who calls it: workflows run the steps that [Next] answers, activities carry
// out single steps, drivers describe themselves as [Capabilities], and the
// command line and the web page show what [Next] says comes next, so that what
// people read is what is armed.
//
// # Glossary
//
// One word per thing, everywhere in this module:
//
//   - workspace: ours, stable for ever; one lifecycle workflow each, with the
//     workflow id "box/<workspace>".
//   - box: one sandbox at a provider. A workspace has at most one current box.
//   - epoch: counts the boxes a workspace has had. Every timer, holder, export,
//     observation and confirmation carries it.
//   - provider, driver: where boxes live; the driver is the adapter for one
//     provider. A provider is configured as named instances.
//   - suspend, resume, delete: our words. Pause, stop, kill and terminate stay
//     inside provider packages, since a "stop" deletes at one provider and
//     suspends at another.
//   - deepen: suspend a box deeper, whose memory is kept: from then on it holds
//     files only, and its processes begin anew at the next resume.
//   - last active, idle time: of a box or a conversation. "Activity" alone
//     means a Temporal activity.
//   - holder: a bounded reason why a box may not be suspended now: a connection
//     or a running operation.
//   - hold: what a holder has, for a while. A hold over a box, the flag "held"
//     and the reason "on-hold", is another thing: nothing is destroyed meanwhile.
//   - adopt, restore, replace: take over a box that is there; a new box with the
//     exported history; a new, empty box. The last two begin an epoch.
//   - abandon: stop watching a box that may go on, which is no deletion.
//   - reclaim: free disk space inside a box: plan, then apply.
//   - snapshot: a billed image kept by a provider.
//   - export: history and work that we hold ourselves, verified. Its proof is a
//     receipt.
//   - conversation-archived, box-archived: two levels, always said in full. At
//     both the history stays readable and nothing can be prompted.
//   - intent, observed: what should be (run, suspended, deleted), and what was
//     last seen, and when.
package box

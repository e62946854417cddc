// Package workflows holds [Box], the workflow that owns one workspace's life.
// It is a shell: handlers validate and store, the loop asks [box.Next] for the
// next step, runs its activity and stores the outcome. No rule lives here.
//
// All that survives is [box.Facts]; everything else is rebuilt in each run.
// Workers register it, callers start it by its name, box.WorkflowType.
package workflows

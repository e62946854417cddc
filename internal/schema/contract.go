// Package schema describes the contract with callers as a JSON Schema, from the
// types of package box and the comments on them. It is what clients in other
// languages are generated from, see examples/canvas. Only its test calls it: no
// program needs a schema to run.
package schema

import (
	"reflect"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Update is one update of the workflow.
type Update struct {
	Name            string
	Request, Answer reflect.Type
}

// Signal is one signal of the workflow.
type Signal struct {
	Name    string
	Payload reflect.Type
}

// Query is one query of the workflow.
type Query struct {
	Name   string
	Answer reflect.Type
}

// SearchAttribute is one search attribute of the workflow, with the type that
// the engine indexes it as.
type SearchAttribute struct{ Name, Type string }

// Updates returns every update with what it takes and answers.
func Updates() []Update {
	plain := reflect.TypeFor[box.Request]()
	action := reflect.TypeFor[box.ActionAnswer]()
	return []Update{
		{box.UpdateConnect, reflect.TypeFor[box.ConnectRequest](), reflect.TypeFor[box.ConnectAnswer]()},
		{box.UpdateRenew, reflect.TypeFor[box.RenewRequest](), reflect.TypeFor[box.ConnectAnswer]()},
		{box.UpdateRelease, reflect.TypeFor[box.ReleaseRequest](), action},
		{box.UpdateSuspend, plain, action},
		{box.UpdateResume, plain, action},
		{box.UpdateReclaim, reflect.TypeFor[box.ReclaimAsk](), reflect.TypeFor[box.ReclaimReport]()},
		{box.UpdateExport, plain, reflect.TypeFor[box.Receipt]()},
		{box.UpdateSetPolicy, reflect.TypeFor[box.SetPolicyAsk](), reflect.TypeFor[box.SetPolicyAnswer]()},
		{box.UpdateKeep, reflect.TypeFor[box.SwitchAsk](), action},
		{box.UpdateFreeze, reflect.TypeFor[box.SwitchAsk](), action},
		{box.UpdateAdopt, reflect.TypeFor[box.AdoptAsk](), action},
		{box.UpdateRestore, reflect.TypeFor[box.RestoreAsk](), action},
		{box.UpdateReplace, plain, action},
		{box.UpdateAbandon, reflect.TypeFor[box.AbandonAsk](), action},
		{box.UpdateRequestDelete, reflect.TypeFor[box.RequestDeleteAsk](), reflect.TypeFor[box.Loss]()},
	}
}

// Signals returns every signal with what it carries.
func Signals() []Signal {
	return []Signal{
		{box.SignalConfirmDelete, reflect.TypeFor[box.ConfirmDelete]()},
		{box.SignalCancelDelete, reflect.TypeFor[box.CancelDelete]()},
		{box.SignalRelease, reflect.TypeFor[box.ReleaseRequest]()},
		{box.SignalRenew, reflect.TypeFor[box.RenewRequest]()},
		{box.SignalActivity, reflect.TypeFor[box.ActivitySignal]()},
		{box.SignalObserved, reflect.TypeFor[box.ObservedSignal]()},
		{box.SignalHold, reflect.TypeFor[box.HoldSignal]()},
	}
}

// Queries returns every query with what it answers.
func Queries() []Query {
	return []Query{
		{box.QueryStatus, reflect.TypeFor[box.Status]()},
		{box.QueryWhy, reflect.TypeFor[box.Why]()},
	}
}

// SearchAttributes returns every search attribute.
func SearchAttributes() []SearchAttribute {
	return []SearchAttribute{
		{box.SearchProvider, "Keyword"},
		{box.SearchState, "Keyword"},
		{box.SearchOwner, "Keyword"},
		{box.SearchNextActionAt, "Datetime"},
		{box.SearchSuspendedSince, "Datetime"},
		{box.SearchEpoch, "Int"},
		{box.SearchBlocked, "Keyword"},
	}
}

// Roots returns the types that callers send or get, input first, each once.
func Roots() []reflect.Type {
	roots := []reflect.Type{reflect.TypeFor[box.Input]()}
	for _, u := range Updates() {
		roots = append(roots, u.Request, u.Answer)
	}
	for _, s := range Signals() {
		roots = append(roots, s.Payload)
	}
	for _, q := range Queries() {
		roots = append(roots, q.Answer)
	}
	// The type of an application failure, so no field has it.
	return unique(append(roots, reflect.TypeFor[box.Class]()))
}

// internalFields are on the wire between runs of a workflow, and are not for
// callers.
var internalFields = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"Input.carried":       true, // the facts that continue-as-new hands on
	"Input.rebuilt":       true, // what a rebuild of the fleet read in a ledger
	"Input.turns_per_run": true, // forces continue-as-new in tests
}

// Fields returns the fields of a struct as they are on the wire, those of
// embedded structs among them, in the order of the source. Fields that are not
// for callers are left out.
func Fields(t reflect.Type) []reflect.StructField {
	var out []reflect.StructField
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || !f.IsExported() || internalFields[t.Name()+"."+wireName(f)] {
			continue
		}
		out = append(out, f)
	}
	return out
}

// written are the types that are texts on the wire, whatever they are in Go.
var written = []reflect.Type{ //nolint:gochecknoglobals // a constant table
	reflect.TypeFor[time.Time](), reflect.TypeFor[box.Duration](), reflect.TypeFor[box.Span](), reflect.TypeFor[box.Tri](),
}

func unique(types []reflect.Type) []reflect.Type {
	var out []reflect.Type
	seen := map[reflect.Type]bool{}
	for _, t := range types {
		if !seen[t] {
			out = append(out, t)
		}
		seen[t] = true
	}
	return out
}

package box

import "slices"

// seenBefore records a request id and reports whether it was known.
func (f *Facts) seenBefore(id string) bool {
	if slices.Contains(f.Seen, id) {
		return true
	}
	f.Seen = append(f.Seen, id)
	if extra := len(f.Seen) - maxSeen; extra > 0 {
		f.Seen = slices.Delete(f.Seen, 0, extra)
	}
	return false
}

// ResultFor returns the outcome of the ask with this request id.
func (f *Facts) ResultFor(id string) (Result, bool) {
	for _, r := range slices.Backward(f.Results) {
		if r.ID == id {
			return r, true
		}
	}
	return Result{}, false
}

func (f *Facts) finish(ask Ask, r Result) {
	r.ID = ask.ID
	f.Asks = slices.DeleteFunc(f.Asks, func(a Ask) bool { return a.ID == ask.ID })
	f.Results = append(f.Results, r)
	if extra := len(f.Results) - maxResults; extra > 0 {
		f.Results = slices.Delete(f.Results, 0, extra)
	}
}

// answerOld refuses a request that is known, while neither it waits nor its answer
// is kept: whoever asks again must not wait for ever.
func (f *Facts) answerOld(id string, waits bool, then string) {
	if _, done := f.ResultFor(id); !done && !waits {
		f.finish(Ask{ID: id}, Result{Class: ClassFailedPrecondition, Error: "this request was answered long ago and the answer is not kept any more; " + then})
	}
}

// failAsks answers every pending ask with a refusal.
func (f *Facts) failAsks(class Class, text string) {
	for _, ask := range slices.Clone(f.Asks) {
		f.finish(ask, Result{Class: class, Error: text})
	}
}

package reclaim

import "context"

// Needs looks what in the box cannot do without something elsewhere; of then says
// in words what cannot do without a directory, an absolute path, empty for
// nothing. It may take long. Nil means that nothing needs another's.
type Needs func(ctx context.Context) (of func(dir string) string, err error)

// Of looks once, and returns what says why directories must stay: since something
// needs one of them, or since that can't be told; empty when they need not.
func (n Needs) Of(ctx context.Context) func(dirs ...string) string {
	if n == nil {
		return func(...string) string { return "" }
	}
	of, err := n(ctx)
	return func(dirs ...string) string {
		if err != nil {
			return "cannot tell whether something else in the box needs it: " + err.Error()
		}
		for _, dir := range dirs {
			if why := of(dir); why != "" {
				return "is needed: " + why
			}
		}
		return ""
	}
}

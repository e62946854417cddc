package box

// SettledAs is what a move that came to rest is told as.
func SettledAs(o *Outbox, from, to State) EventKind {
	kind, _ := o.settle(from, to)
	return kind
}

// Tell puts an event into the outbox.
func (f *Facts) Tell(e Event) { f.add(e) }

package exports

import (
	"bytes"
	"cmp"
	"context"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/secretscan"
)

// scan is the look for secrets of one export.
type scan struct {
	scanner *secretscan.Scanner
	key     secretscan.Key
	policy  box.SecretsPolicy
	// objects holds what was found, by the object's key and sum.
	objects map[objectID]ScannedObject
	// earlier holds what reports of other exports say of their objects, with the
	// policy that they were stored by.
	earlier map[objectID]earlierScan
	listed  int
	// past is the workspace of an earlier export, if all finds in it are known.
	past *pastArchive
}

type objectID struct{ key, sum string }

func objectIDs(entries []ConversationEntry) (out []objectID) {
	for _, c := range entries {
		out = append(out, objectID{c.Key, c.SHA256})
	}
	return out
}

type earlierScan struct {
	object ScannedObject
	policy box.SecretsPolicy
}

func (s *Store) newScan(req Request) (*scan, error) {
	scanner, err := s.scanner()
	if err != nil {
		return nil, err
	}
	return &scan{
		scanner: scanner, key: secretscan.NewKey(s.fingerprintKey, req.Workspace), policy: cmp.Or(req.Secrets, s.secretsPolicy),
		objects: map[objectID]ScannedObject{}, earlier: map[objectID]earlierScan{},
	}, nil
}

// learn takes over what the report of another export says. One that is lost,
// altered or made with other rules only costs another look.
func (c *scan) learn(ctx context.Context, s *Store, m Manifest) error {
	if m.Secrets == nil {
		return nil
	}
	r, err := s.secrets(ctx, *m.Secrets)
	if damaged(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.Rules == c.scanner.Rules() {
		for _, o := range r.Objects {
			c.earlier[objectID{o.Key, o.SHA256}] = earlierScan{o, r.Policy}
			if m.Archive != nil && o.Key == m.Archive.Index.Key && o.SHA256 == m.Archive.Index.SHA256 && len(o.List) == o.Findings {
				c.past = &pastArchive{*m.Archive, o}
			}
		}
	}
	return nil
}

// objectScan looks through one object, entry by entry, as they are written to
// it. It holds a piece of one entry.
type objectScan struct {
	scan   *scan
	object ScannedObject
	mask   bool // something must be masked before it is stored
	values secretscan.Values
	stream *secretscan.Stream
	name   string // of the entry, masked
	again  bool   // it was masked: a name that tells of a secret file stays
	full   error
}

// begin starts the look through one object; sum is its sha256 if it is known.
func (c *scan) begin(sum string) *objectScan {
	o := &objectScan{scan: c, object: ScannedObject{SHA256: sum}}
	o.stream = c.scanner.Stream(c.key, "", nil, func(v secretscan.Found) { o.add(v, false) })
	return o
}

// entry begins the next entry, after end; its name is looked through too.
func (o *objectScan) entry(name string) {
	var inName []secretscan.Found
	o.name = o.scan.scanner.Name(o.scan.key, name, nil, func(v secretscan.Found) { inName = append(inName, v) })
	for _, v := range inName {
		o.add(v, true)
	}
	o.stream.Reset(name)
	o.object.Entries++
}

// Write takes the content of the entry.
func (o *objectScan) Write(p []byte) (int, error) {
	n, err := o.stream.Write(p)
	o.object.Bytes += int64(n)
	if err == nil {
		err = o.full
	}
	return n, err
}

// end ends an entry. After the last one object tells what was found; with an
// error it tells nothing.
func (o *objectScan) end() error {
	if err := o.stream.Close(); err != nil {
		return err
	}
	return o.full
}

// add counts a find, and lists it if there is room.
func (o *objectScan) add(v secretscan.Found, inName bool) {
	if v.File && o.again {
		return
	}
	masks := o.scan.policy.Masks(v.Promised)
	o.object.Findings++
	if masks {
		o.object.Masked++
		o.mask = true
	}
	if o.scan.policy.Masks(false) {
		if err := o.values.Add(v); err != nil {
			o.full = err
		}
	}
	if len(o.object.List) < maxListedObject && o.scan.listed+len(o.object.List) < maxListed {
		o.object.List = append(o.object.List, SecretFinding{
			Rule: v.Rule, Entry: o.name, InName: inName, Line: v.Line, Offset: v.Offset, Fingerprint: v.Fingerprint, Masked: masks,
		})
	}
}

// look reads every entry of a zip. Whatever keeps it from reading one to its
// end is an error: nothing passes unseen.
func (c *scan) look(ctx context.Context, f *spooled, tick func(int)) (*objectScan, error) {
	z, err := openZip(f.file, f.size)
	if err != nil {
		return nil, err
	}
	o := c.begin(f.sum)
	o.again = z.comment == maskedComment
	u := newUnpacker(z)
	buf := make([]byte, copyBufferSize)
	err = z.walk(ctx, func(e zipEntry) error {
		r, _, err := u.open(e)
		if err != nil {
			return err
		}
		before := o.object.Bytes
		o.entry(e.name)
		if err := pourWith(ctx, o, r, tick, buf); err != nil {
			return err
		}
		if o.object.Bytes-before != e.size {
			return badZipf("entry %d of the zip is damaged: its size is wrong", e.number)
		}
		return o.end()
	})
	return o, err
}

// refuses reports whether the export cannot be taken because of this object.
func (c *scan) refuses(o ScannedObject) bool {
	return c.policy.Refusal(o.Findings, o.Masked, "", "") != nil
}

// refused reports whether it cannot be taken because of any so far.
func (c *scan) refused() bool {
	for _, o := range c.objects {
		if c.refuses(o) {
			return true
		}
	}
	return false
}

// record keeps what was found in an object.
func (c *scan) record(id objectID, o ScannedObject) {
	if old, ok := c.objects[id]; ok {
		c.listed -= len(old.List)
	}
	o.Key, o.SHA256 = id.key, id.sum
	c.objects[id] = o
	c.listed += len(o.List)
}

// usable proves a copy that the store holds and decides whether it may stand as
// it is, and records what is in it. A copy that was masked is taken only with the report
// that says what was; one that the policy wants masked is fetched again.
func (e *exporter) usable(ctx context.Context, c ConversationEntry) (bool, error) {
	if past, ok := e.scan.earlier[objectID{c.Key, c.SHA256}]; ok &&
		(past.object.Findings == 0 || past.policy == e.scan.policy) {
		e.stage(StageReadBack, c.ID, c.Bytes)
		if err := e.store.proveSum(ctx, c, e.tick); err != nil {
			return false, err
		}
		e.scan.record(objectID{c.Key, c.SHA256}, past.object)
		return true, nil
	}
	f, _, err := e.store.proveCopy(ctx, c)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // it has no name any more
	return e.usableCopy(ctx, c, f)
}

func (e *exporter) usableCopy(ctx context.Context, c ConversationEntry, f *spooled) (bool, error) {
	z, err := openZip(f.file, f.size)
	if err != nil {
		return false, fault(ctx, "read "+c.Key, err)
	}
	if z.comment == maskedComment {
		return false, nil
	}
	e.stage(StageScan, c.ID, -1)
	found, err := e.scan.look(ctx, f, e.tick)
	if err != nil {
		return false, fault(ctx, "look for secrets in "+c.Key, err)
	}
	if found.mask {
		return false, nil
	}
	e.scan.record(objectID{c.Key, c.SHA256}, found.object)
	return true, nil
}

// clean looks through a new copy and masks what must be masked. It returns the
// copy that is to be stored, and closes the given one if that is another.
func (e *exporter) clean(ctx context.Context, id string, f *spooled, events int) (*spooled, ScannedObject, error) {
	e.stage(StageScan, id, -1)
	found, err := e.scan.look(ctx, f, e.tick)
	if err != nil {
		_ = f.Close()
		return nil, ScannedObject{}, fault(ctx, "look for secrets in conversation "+id, err)
	}
	if !found.mask {
		return f, found.object, nil
	}
	defer f.Close() //nolint:errcheck // it has no name any more
	e.stage(StageMask, id, -1)
	masked, err := e.mask(ctx, id, f, found, events)
	if err != nil {
		return nil, ScannedObject{}, fault(ctx, "mask the secrets of conversation "+id, err)
	}
	return masked, found.object, nil
}

// secretsReport stores the report of what the objects of an export hold and
// reads it back. FailedPrecondition: the policy refuses the export.
func (e *exporter) secretsReport(ctx context.Context, attempt string, objects []objectID) (*SecretsEntry, error) {
	r := SecretsReport{
		Version: SecretsVersion, Workspace: e.req.Workspace, Epoch: e.req.Epoch, Attempt: attempt,
		Rules: e.scan.scanner.Rules(), Policy: e.scan.policy, Objects: []ScannedObject{},
	}
	for _, id := range objects {
		o, ok := e.scan.objects[id]
		if !ok {
			return nil, box.Errorf(box.ClassInternal, "%s was not looked through for secrets, so it is not exported", id.key)
		}
		r.Objects = append(r.Objects, o)
	}
	r.finish()
	data, err := r.encode()
	if err != nil {
		return nil, err
	}
	entry := &SecretsEntry{SHA256: sumOf(data), Findings: r.Findings, Masked: r.Masked, Whole: true}
	if entry.Key, err = e.putFirst(ctx, "application/json", bytes.NewReader(data), entry.SHA256, secretsKey); err != nil {
		return nil, err
	}
	if err := e.scan.policy.Refusal(r.Findings, r.Masked, e.req.Workspace, entry.Key); err != nil {
		return nil, err
	}
	return entry, nil
}

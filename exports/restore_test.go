package exports_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// taker is a box that takes conversations in.
type taker struct {
	got  map[string][]byte
	fail error
}

func (s *taker) Upload(_ context.Context, id string, body io.Reader, size int64) error {
	if s.fail != nil {
		return s.fail
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if int64(len(data)) != size {
		return errors.New("the size is wrong")
	}
	s.got[id] = data
	return nil
}

func exported(t *testing.T, b *bucket, src *server) (*exports.Store, box.Receipt) {
	t.Helper()
	s := b.store(exports.Options{})
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	require.NoError(t, err)
	return s, receipt
}

func TestRestoreHandsOutWhatWasExported(t *testing.T) {
	t.Parallel()
	src := newServer(3, 0, 2)
	s, receipt := exported(t, newBucket(), src)
	box1 := &taker{got: map[string][]byte{}}
	var told []exports.Progress
	require.NoError(t, s.Restore(t.Context(), receipt.Workspace, receipt, nil, box1, func(p exports.Progress) { told = append(told, p) }))
	require.Len(t, box1.got, 3)
	require.Len(t, told, 3)
	for _, m := range src.marks() {
		body, _, err := src.Download(t.Context(), m.ID)
		require.NoError(t, err)
		want, err := io.ReadAll(body)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, box1.got[m.ID]), m.ID)
	}
	t.Run("a repeat hands out what is missing only", func(t *testing.T) {
		t.Parallel()
		again := &taker{got: map[string][]byte{}}
		require.NoError(t, s.Restore(t.Context(), receipt.Workspace, receipt, src.marks()[1:], again, nil))
		require.Len(t, again.got, 1)
	})
	t.Run("a box that was used is not written over", func(t *testing.T) {
		t.Parallel()
		there := slices.Clone(src.marks())
		there[0].Events++
		err := s.Restore(t.Context(), receipt.Workspace, receipt, there, &taker{got: map[string][]byte{}}, nil)
		wantClass(t, err, box.ClassFailedPrecondition)
	})
	t.Run("what the box refuses is its own answer", func(t *testing.T) {
		t.Parallel()
		full := &taker{fail: box.Errorf(box.ClassExhausted, "the disk is full")}
		wantClass(t, s.Restore(t.Context(), receipt.Workspace, receipt, nil, full, nil), box.ClassExhausted)
	})
	t.Run("another workspace's export is none of it", func(t *testing.T) {
		t.Parallel()
		wantClass(t, s.Restore(t.Context(), "other", receipt, nil, &taker{}, nil), box.ClassInvalid)
		changed := receipt
		changed.Events++
		wantClass(t, s.Restore(t.Context(), receipt.Workspace, changed, nil, &taker{}, nil), box.ClassUnknown)
	})
}

func TestRestoreHandsOutNothingThatIsDamaged(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s, receipt := exported(t, b, newServer(3))
	for _, key := range b.keys() {
		if key != receipt.Key {
			b.change(key, func(data []byte) []byte { data[len(data)/2] ^= 1; return data })
		}
	}
	sink := &taker{got: map[string][]byte{}}
	wantClass(t, s.Restore(t.Context(), receipt.Workspace, receipt, nil, sink, nil), box.ClassUnknown)
	require.Empty(t, sink.got)
}

// A workspace is closed by an abandonment as by a deletion, for both ways to
// begin.
func TestAnAbandonedWorkspaceStaysClosed(t *testing.T) {
	t.Parallel()
	for _, end := range []exports.Kind{exports.KindAbandoned, exports.KindDeleted} {
		s := newBucket().store(exports.Options{})
		add := func(id string, kind exports.Kind) error {
			_, err := s.AppendLedger(t.Context(), "mine", exports.Entry{ID: id, Kind: kind, Epoch: 1})
			return err
		}
		require.NoError(t, add("1", exports.KindAdoptIntent))
		require.NoError(t, add("2", exports.KindAdopted))
		require.NoError(t, add("3", end))
		closed, last, err := s.Closed(t.Context(), "mine")
		require.NoError(t, err)
		require.True(t, closed)
		require.Equal(t, end, last.Kind)
		wantClass(t, add("4", exports.KindCreateIntent), box.ClassFailedPrecondition)
		wantClass(t, add("5", exports.KindAdoptIntent), box.ClassFailedPrecondition)
	}
}

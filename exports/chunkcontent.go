package exports

import (
	"context"
	"io"
	"slices"

	"github.com/openhands/boxkeeper/box"
)

// keptContent reads what a keeper put into the store, proven, a chunk at a time.
type keptContent struct {
	keeper *chunkKeeper
	begins []int64 // of each chunk in the tar
	held   int     // the chunk in hand
	data   []byte
}

// content is for after the last chunk was kept.
func (k *chunkKeeper) content() *keptContent {
	c := &keptContent{keeper: k, held: -1}
	at := int64(0)
	for _, one := range k.chunks {
		c.begins = append(c.begins, at)
		at += int64(one.bytes)
	}
	return c
}

// pour writes a part of the tar.
func (c *keptContent) pour(ctx context.Context, w io.Writer, at, size int64, tick func(int)) error {
	for size > 0 {
		i, exact := slices.BinarySearch(c.begins, at)
		if !exact {
			i--
		}
		if i < 0 || at >= c.begins[i]+int64(c.keeper.chunks[i].bytes) {
			return box.Errorf(box.ClassInternal, "the tar has no byte %d", at)
		}
		if i != c.held {
			var err error
			if c.data, err = c.keeper.read.get(ctx, c.keeper.chunks[i], c.data[:0]); err != nil {
				c.held = -1
				return err
			}
			c.held = i
		}
		part := c.data[at-c.begins[i]:]
		part = part[:min(int64(len(part)), size)]
		if _, err := w.Write(part); err != nil {
			return err
		}
		tick(len(part))
		at, size = at+int64(len(part)), size-int64(len(part))
	}
	return nil
}

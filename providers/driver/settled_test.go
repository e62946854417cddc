package driver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

func TestUnsettledNeverSaysThatNothingWasDone(t *testing.T) {
	t.Parallel()
	for class, settled := range map[box.Class]bool{
		box.ClassUnknown: false, box.ClassConflict: false, box.ClassExhausted: false, box.ClassUnavailable: false,
		box.ClassCanceled: false, box.ClassDeadlineExceeded: false, box.ClassInternal: false,
		box.ClassNotFound: true, box.ClassAlreadyExists: true, box.ClassInvalid: true, box.ClassFailedPrecondition: true,
		box.ClassUnauthorized: true, box.ClassUnsupported: true,
	} {
		want := class
		if settled {
			want = box.ClassUnavailable
		}
		err := driver.Unsettled(&box.Error{Class: class, Message: "why it was", RetryAfter: time.Minute})
		if got := box.ClassOf(err); got != want || driver.Settled(class) != settled {
			t.Errorf("%s becomes %s, want %s", class, got, want)
		}
		if e, ok := errors.AsType[*box.Error](err); !ok || e.RetryAfter != time.Minute || !strings.Contains(err.Error(), "why it was") {
			t.Errorf("%s: the wait or the words are lost: %v", class, err)
		}
	}
	if driver.Unsettled(nil) != nil {
		t.Error("no error became one")
	}
}

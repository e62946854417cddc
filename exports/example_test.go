package exports_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/openhands/boxkeeper/exports"
)

func ExampleStore_Export() {
	ctx := context.Background()
	store, err := exports.Open(ctx, "mem://")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()       //nolint:errcheck // an example's
	source := newServer(2, 3) // a box with two conversations

	request := exports.Request{Workspace: "demo", Epoch: 1, Attempt: "first"}
	receipt, err := store.Export(ctx, request, source, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(receipt.Key, receipt.Conversations, receipt.Events)

	report, err := store.Verify(ctx, "demo", receipt)
	fmt.Println(len(report.Conversations), err)
	// Output:
	// exports/demo/0001/first/manifest.json 2 5
	// 2 <nil>
}

func ExampleStore_WriteText() {
	ctx := context.Background()
	store, err := exportedDemo(ctx, newServer(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close() //nolint:errcheck // an example's
	conversations, err := store.Conversations(ctx, "demo")
	if err != nil {
		fmt.Println(err)
		return
	}
	for event, err := range store.Events(ctx, "demo", conversations[0].ID) {
		fmt.Println(event.Index, event.Kind, event.Source, err)
	}
	if err := store.WriteText(ctx, os.Stdout, "demo", "00000000000000000000000000000002"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0 MessageEvent user <nil>
	// workspace demo has no export of conversation 00000000000000000000000000000002
}

// exportedDemo is a store with an export of the workspace "demo".
func exportedDemo(ctx context.Context, src exports.Source) (*exports.Store, error) {
	store, err := exports.Open(ctx, "mem://")
	if err == nil {
		_, err = store.Export(ctx, exports.Request{Workspace: "demo", Epoch: 1, Attempt: "first"}, src, nil)
	}
	return store, err
}

// A page of a history, as a gateway shows it: the box and its engine may be
// gone. The position of the next page goes into its link.
func ExampleStore_OpenConversation() {
	ctx := context.Background()
	store, err := exportedDemo(ctx, newServer(7))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close() //nolint:errcheck // an example's
	page := func(id string, from, count int) (next int, err error) {
		conversation, err := store.OpenConversation(ctx, "demo", id)
		if err != nil {
			return 0, err
		}
		defer conversation.Close() //nolint:errcheck // only read
		next = from
		for event, err := range conversation.Events(ctx, from, count) {
			if err != nil {
				return 0, err
			}
			fmt.Print(event.Source, event.Index, " ")
			next++
		}
		if next < conversation.History.Events {
			fmt.Print("next: ", next)
		}
		fmt.Println()
		return next, conversation.Damage()
	}
	for from := 0; from < 7; {
		if from, err = page("00000000000000000000000000000001", from, 3); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// user0 user1 user2 next: 3
	// user3 user4 user5 next: 6
	// user6
}

func ExampleStore_AppendLedger() {
	ctx := context.Background()
	store, err := exports.Open(ctx, "mem://")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close() //nolint:errcheck // an example's
	tombstone := exports.Entry{ID: "step-9", Kind: exports.KindDeleted, Epoch: 1, Data: json.RawMessage(`{"reason":"asked by its owner"}`)}
	for range 2 { // the second is a retry
		seq, err := store.AppendLedger(ctx, "demo", tombstone)
		fmt.Println(seq, err)
	}
	closed, entry, err := store.Closed(ctx, "demo")
	fmt.Println(closed, string(entry.Data), err)
	// Output:
	// 1 <nil>
	// 1 <nil>
	// true {"reason":"asked by its owner"} <nil>
}

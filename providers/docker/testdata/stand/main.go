// Command stand is what runs in containers of tests that are no boxes: it stands
// there until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
}

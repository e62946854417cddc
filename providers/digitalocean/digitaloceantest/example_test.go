package digitaloceantest_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/digitalocean/godo"
	"golang.org/x/oauth2"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// A create whose answer is lost has made a session all the same, and what was
// paid for it is on its bill.
func Example() {
	service := digitaloceantest.New(digitaloceantest.Options{})
	defer service.Close()
	service.Inject(digitaloceantest.Fault{Op: digitaloceantest.OpCreate, Cut: true, After: true})

	ctx := context.Background()
	token := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: digitaloceantest.DefaultToken})
	client, err := godo.New(&http.Client{Transport: &oauth2.Transport{Base: service.Transport(), Source: token}})
	if err != nil {
		fmt.Println(err)
		return
	}
	config, _, err := client.HostedAgents.CreateEnvironment(ctx, &godo.HostedEnvironmentCreateRequest{
		Name: "box", ManifestYAML: "agent: openhands\ntemplate: openhands\nkeep_warm: false\nidle_timeout: 10m",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _, err = client.HostedAgents.CreateSessionFromEnvironment(ctx, &godo.HostedAgentSessionFromEnvironmentRequest{
		Name: "box-1", ConfigID: config.ID,
	})
	fmt.Println("created:", err == nil)

	service.Advance(time.Hour)
	for _, statement := range service.Bill() {
		fmt.Println(statement.Name, statement.Status, statement.PauseReason, "ran for", statement.Running)
	}
	// Output:
	// created: false
	// box-1 PAUSED idle ran for 10m0s
}

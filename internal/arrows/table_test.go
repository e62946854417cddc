package arrows_test

const module = "github.com/openhands/boxkeeper"

// layer is one row of the map: which packages belong to it, which layers of
// this module their non-test files may import, and which outside modules. The
// standard library is free to all; .golangci.yml narrows it where needed.
//
// A package belongs to the first row whose pattern matches its path below the
// module. One that matches none fails the test, and so does a row that no
// package matches: the table is the map people read, so it says what is there.
type layer struct {
	name     string
	packages string // path.Match pattern below the module
	layers   string // space-separated names
	outside  string // space-separated import-path prefixes
}

const (
	sdkInActivities = "go.temporal.io/sdk/activity go.temporal.io/sdk/temporal go.temporal.io/sdk/log"
	sdkInWorkflows  = "go.temporal.io/sdk/workflow go.temporal.io/sdk/temporal go.temporal.io/sdk/log go.temporal.io/api"
	zap             = "go.uber.org/zap"
)

var layers = []layer{
	{"domain", "box", "", ""},

	{"driver", "providers/driver", "domain", ""},
	{"http-driver", "providers/driver/httpdriver", "domain", ""}, // what drivers of HTTP services share
	{"portable", "providers", "domain driver", ""},
	{"conformance", "providers/drivertest", "domain driver portable race", "github.com/stretchr/testify pgregory.net/rapid"},
	{"catalogue", "providers/all", "domain driver portable provider", zap},
	// A provider never imports another one: what two of them share goes to
	// the portable type, or to a package of its own with its own row here.
	{"provider", "providers/docker", "domain driver", "github.com/moby/moby github.com/containerd/errdefs " + zap},
	{"provider", "providers/digitalocean", "domain driver http-driver", "github.com/digitalocean/godo github.com/gorilla/websocket go.yaml.in/yaml/v3"},
	{"provider", "providers/*", "domain driver http-driver", "golang.org/x " + zap},
	// A fake of a provider's service speaks HTTP and knows nothing of ours.
	{"service-fake", "providers/docker/dockertest", "", "github.com/moby"},
	{"service-fake", "providers/runtimeapi/runtimeapitest", "", ""},
	{"service-fake", "providers/digitalocean/digitaloceantest", "", "github.com/gorilla/websocket go.yaml.in/yaml/v3"},

	// What comes out of a box is read the same way beside it, in a worker and
	// where it is kept.
	{"archive", "workspacetar", "domain", "github.com/klauspost/compress"},
	{"agentserver", "agentserver", "domain archive", ""},
	// In-box code is what cmd/boxd is made of: it runs beside a person's
	// files, is copied into every box, and so stays small.
	{"in-box", "agentserver/*", "domain archive agentserver in-box", "golang.org/x/sys github.com/klauspost/compress"},
	{"storage-suite", "agentserver/storage/storagetest", "domain in-box", "golang.org/x/sys github.com/stretchr/testify"},
	{"in-box", "agentserver/storage/*", "domain agentserver in-box", "golang.org/x/sys"},

	{"secret-scan", "exports/secretscan", "domain", "github.com/BurntSushi/toml"},
	{"git-reader", "exports/gitpack", "", "github.com/klauspost/compress"},
	{"exports", "exports", "domain archive secret-scan git-reader", "gocloud.dev github.com/aws filippo.io/age github.com/klauspost/compress github.com/restic/chunker golang.org/x/sys"},
	{"activities", "activities", "domain driver portable agentserver exports", sdkInActivities + " " + zap},
	{"notices", "internal/notices", "domain", "github.com/cloudevents/sdk-go/v2 " + zap},
	// Names and types of activities, never their work.
	{"workflows", "workflows", "domain activities", sdkInWorkflows},
	{"workers", "workers", "domain workflows activities notices driver portable exports", "go.temporal.io/sdk go.temporal.io/api " + zap},

	{"config", "internal/config", "domain", "github.com/BurntSushi/toml go.yaml.in/yaml/v3 go.temporal.io/sdk/contrib/envconfig go.temporal.io/sdk/client"},
	{"telemetry", "internal/telemetry", "domain", "go.opentelemetry.io github.com/prometheus/client_golang go.temporal.io/sdk " + zap},
	{
		"engine", "internal/engine", "domain data-file fault",
		"go.temporal.io github.com/temporalio github.com/labstack/echo/v4 github.com/google/uuid google.golang.org modernc.org/sqlite golang.org/x/sys " + zap,
	},
	// The engine's file without the engine, so that its tests need no engine.
	{"data-file", "internal/engine/datafile", "domain", "modernc.org/sqlite golang.org/x/sys"},
	{"fault", "internal/engine/fault", "domain", zap},
	{
		"cli", "internal/cli",
		"domain driver portable catalogue provider agentserver in-box exports notices activities workflows workers config telemetry",
		"go.temporal.io/sdk go.temporal.io/api github.com/docker/go-units github.com/spf13/cobra github.com/spf13/pflag golang.org/x/sys golang.org/x/term google.golang.org/protobuf google.golang.org/grpc " + zap,
	},
	{"e2e", "internal/e2e", "domain", ""}, // its non-test files; the tests reach everything

	{"backup", "internal/daemon/backup", "domain data-file", "github.com/klauspost/compress golang.org/x/sys"},
	{
		"daemon", "internal/daemon",
		"domain driver portable catalogue provider agentserver in-box exports notices activities workflows workers config telemetry engine data-file backup cli",
		"go.temporal.io/sdk go.temporal.io/api github.com/google/uuid github.com/spf13/cobra golang.org/x/sys golang.org/x/term " + zap,
	},

	{"cmd-engine", "cmd/boxkeeperd", "domain cli daemon config", "github.com/spf13/cobra"},
	{"cmd", "cmd/boxkeeper", "domain cli config", "github.com/spf13/cobra"},
	{"cmd-boxd", "cmd/boxd", "domain in-box", ""},

	{"schema", "internal/schema", "domain", ""},
	{"report", "internal/testreport", "", ""},
	{"race", "internal/race", "", ""}, // for tests
	{"cmd-report", "internal/testreport/cmd/*", "report", ""},
	{"checks", "internal/arrows", "", ""},
	{"checks", "deploy", "", ""},
}

// engineModules are what only internal/engine may bring in: they make a binary
// 150 MB larger and a first build minutes longer.
var engineModules = []string{"go.temporal.io/server", "github.com/temporalio/ui-server"}

// engineUsers may import internal/engine, tests included. Any other package
// that did would link the engine into its test binary and slow each run of it.
var engineUsers = []string{"internal/daemon", "internal/e2e", "internal/engine"}

// reach says what a program must not come to, however many imports away.
var reach = []struct {
	program string
	never   []string // import-path prefixes
	why     string
}{
	{"cmd/boxkeeper", append([]string{module + "/internal/engine", module + "/internal/daemon"}, engineModules...), "a worker for a Temporal of its own has no use for an engine"},
	{"cmd/boxd", append([]string{module + "/internal/engine", "go.temporal.io"}, engineModules...), "boxd is copied into every box"},
}

// pins are the versions that are known to build together, with the reason why
// each is not simply the newest.
var pins = []struct{ module, version, why string }{
	{"go.temporal.io/sdk", "v1.50.0", "v1.51.0 needs an api that server v1.32.1 does not compile with"},
	{"go.temporal.io/api", "v1.63.5", "the server implements the api's gRPC interfaces, so a newer api with one call more breaks its build"},
	{"go.temporal.io/server", "v1.32.1", "v1.32.2 needs go 1.26.10; docker-compose.yml and the data file's schema follow this version"},
	{"github.com/temporalio/ui-server/v2", "v2.55.0", "v2.56.0 needs go 1.26.9"},
}

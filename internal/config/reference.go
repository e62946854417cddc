package config

import (
	"fmt"
	"strings"
)

// Reference returns the text of docs/configuration.md.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Configuration

This file is generated from the settings in internal/config; a test fails when it is stale.

Settings come from one TOML file and from environment variables, which win. The file is the one that ` + "`--config` or `BOXKEEPER_CONFIG`" + ` names, else ` + "`" + FileName + "`" + ` in the data directory if it is there. A key that is not listed here is an error. Relative paths in the file count from the file's directory, elsewhere from the working directory. In an environment variable a list is a JSON array. The connection to Temporal is configured the way Temporal's own tools are (` + "`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, `TEMPORAL_TLS_*`, `TEMPORAL_API_KEY`" + `, or its configuration file).

` + "`boxkeeper config`" + ` prints what is in force.

`)
	for _, s := range Settings() {
		fmt.Fprintf(&b, "## `%s`\n\n%s\n\n", strings.ReplaceAll(s.Key, "*", "NAME"), s.What)
		if len(s.Drivers) > 0 {
			fmt.Fprintf(&b, "* of instances of: %s\n", strings.Join(s.Drivers, ", "))
		}
		fmt.Fprintf(&b, "* environment: `%s`\n* form: %s\n* default: `%s`\n* when to change it: %s\n\n", s.Env, s.Form, s.Default, s.When)
	}
	b.WriteString(stores)
	b.WriteString("## Secrets\n\n" +
		"Settings and specs carry references, never values:\n\n" +
		"* `env:NAME`: an environment variable of the worker.\n" +
		"* `file:/absolute/path`: a file on the worker's machine, at most 64 KiB; one newline at its end is taken off.\n" +
		"* `credential:NAME`: the file NAME in the directory `" + credentialsDir + "` of the data directory; it must be closed to other users (`chmod 600`).\n\n" +
		"Specs can never name the variables `BOXKEEPER_*` and `TEMPORAL_*`, files in the data directory, the installation secret, the key of a webhook, the credentials of a provider, an identity of the encryption, what opens a Docker engine (`DOCKER_CERT_PATH`, `DOCKER_CONFIG`, `~/.docker`), doctl's configuration, and `AWS_*` where the export store is `s3://`.\n\n" +
		"The id of an installation is derived from its secret and is recorded as `" + idFile + "` in the data directory. When the secret is missing or another one later, nothing starts: a new secret could not reach the boxes that exist.\n\n" +
		"## Example\n\n```toml\n" + Example + "```\n")
	return b.String()
}

const stores = `## Stores

` + "`exports`" + ` is the URL of a directory or of a bucket. Every store must honour "write only if it is absent": two writers of one object must not overwrite each other. ` + "`boxkeeper check`" + ` tries it, also for uploads in parts, and workers refuse to write to a bucket that does not.

` + "`file:///absolute/directory`" + `: a directory on a file system with hard links.

` + "`s3://bucket?region=eu-central-1`" + `: S3, or what is compatible with it. Credentials are found as by AWS's own tools: ` + "`AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`" + `, a profile, or a role of the machine; they never go into the URL. They need to read, list, write and delete objects of the bucket, and to give up uploads (` + "`s3:GetObject`, `s3:ListBucket`, `s3:PutObject`, `s3:DeleteObject`, `s3:AbortMultipartUpload`" + `). Parameters:

| parameter | default | meaning |
| --- | --- | --- |
| ` + "`region`" + ` | ` + "`AWS_REGION`" + ` or the profile's | where the bucket is; with ` + "`endpoint`" + ` it may be left out |
| ` + "`endpoint`" + ` | AWS | a server other than AWS, like ` + "`https://s3.example.com`" + ` |
| ` + "`prefix`" + ` | none | a directory in the bucket, like ` + "`boxkeeper/`" + ` |
| ` + "`use_path_style`" + ` | true with ` + "`endpoint`" + ` | the bucket in the path instead of the host's name |
| ` + "`profile`" + ` | ` + "`AWS_PROFILE`" + ` | a profile of AWS's own configuration files |
| ` + "`request_checksum_calculation`" + ` | ` + "`when_required`" + ` with ` + "`endpoint`, else `when_supported`" + ` | whether the SDK adds checksums of its own to uploads, which not every server reads; every object is read back and compared anyway |

Let the bucket end uploads that were not completed after a day or two (a lifecycle rule): a worker that is killed leaves their parts, which nobody sees and everybody pays. No other kind of store is linked: Google's and Azure's clients would make every program larger.

`

// Example is a whole configuration file.
const Example = `data = "/var/lib/boxkeeper"
listen = "127.0.0.1:9464"

[log]
level = "info"
format = "json"

[specs]
env = ["BOX_*"]
files = ["/run/secrets"]

[providers.local]
driver = "local"
suspend = "freeze"
agent_server = ["/opt/openhands/bin/agent-server"]

[webhooks.canvas]
url = "https://canvas.example/hooks/boxkeeper"
keys = ["credential:canvas-webhook"]
`

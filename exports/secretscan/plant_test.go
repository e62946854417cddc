package secretscan_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// planted is a made-up secret of one kind. The values are made here, so that no
// file of this repository holds one.
type planted struct {
	kind string // id of the rule
	text string // as it stands in a shell or a file
	// value is what the rule takes for the secret.
	value string
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	digits = "0123456789"
	hexes  = "0123456789abcdef"
	alnum  = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + digits
)

func some(r *rand.Rand, n int, of string) string {
	out := make([]byte, n)
	for i := range out {
		out[i] = of[r.IntN(len(of))]
	}
	return string(out)
}

// plants makes one secret of each kind.
func plants(seed uint64) []planted {
	r := rand.New(rand.NewPCG(seed, 7))
	b64 := func(n int) string { return base64.RawURLEncoding.EncodeToString([]byte(some(r, n, alnum))) }
	token := func(kind, value string) planted { return planted{kind, value, value} }
	var lines []string
	for range 20 {
		lines = append(lines, some(r, 64, alnum+"+/"))
	}
	pem := "-----BEGIN RSA PRIVATE" + " KEY-----\n" + strings.Join(lines, "\n") + "\n-----END RSA PRIVATE" + " KEY-----"
	password := some(r, 20, alnum) + "7Q"
	user := some(r, 9, alnum) + ":" + some(r, 14, alnum)
	return []planted{
		token("github-pat", "ghp"+"_"+some(r, 36, alnum)),
		token("gitlab-pat", "glpat"+"-"+some(r, 20, alnum)),
		token("aws-access-token", "AK"+"IA"+some(r, 16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
		token("slack-bot-token", "xo"+"xb-"+some(r, 12, digits)+"-"+some(r, 12, digits)+some(r, 24, alnum)),
		token("stripe-access-token", "sk_"+"live_"+some(r, 24, alnum)),
		token("anthropic-api-key", "sk-ant"+"-api03-"+some(r, 93, alnum)+"AA"),
		token("openai-api-key", "sk-"+"proj-"+some(r, 74, alnum)+"T3Blbk"+"FJ"+some(r, 74, alnum)),
		token("gcp-api-key", "AI"+"za"+some(r, 35, alnum)),
		token("npm-access-token", "npm"+"_"+some(r, 36, lower+digits)),
		token("sendgrid-api-token", "SG"+"."+some(r, 66, lower+digits)),
		token("huggingface-access-token", "hf"+"_"+some(r, 34, lower)),
		token("digitalocean-pat", "dop"+"_v1_"+some(r, 64, hexes)),
		token("age-secret-key", "AGE-SECRET"+"-KEY-1"+some(r, 58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L")),
		token("jwt", "ey"+"J"+b64(30)+".ey"+"J"+b64(60)+"."+b64(32)),
		token("private-key", pem),
		{"generic-api-key", "export DB_PASSWORD=" + password, password},
		{"generic-api-key", `client_secret = "` + password + `x1"`, password + "x1"},
		{"curl-auth-user", `curl -s -u "` + user + `" https://example.com/`, `"` + user + `"`},
	}
}

func quoted(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// forms puts a text into what an entry may hold.
var forms = []struct {
	name string
	json bool // it is JSON
	put  func(text string) string
}{
	{"text", false, func(t string) string { return "first line\n" + t + "\nlast line\n" }},
	{"the end", false, func(t string) string { return "first line\n" + t }},
	{"a JSON string", true, func(t string) string { return `{"kind":"MessageEvent","text":` + quoted("see:\n"+t+"\nthat") + `}` }},
	{"JSON in a JSON string", true, func(t string) string {
		return `{"arguments":` + quoted(`{"command":`+quoted("cd x\n"+t+"\nls")+`}`) + `}`
	}},
	{"JSON in JSON in a JSON string", true, func(t string) string {
		return `{"a":` + quoted(`{"b":`+quoted(`{"c":`+quoted("cd x\n"+t+"\nls")+`}`)+`}`) + `}`
	}},
	{"escaped letters", true, func(t string) string {
		var b strings.Builder
		for _, c := range "see:\n" + t + "\nthat" {
			fmt.Fprintf(&b, `\u%04x`, c)
		}
		return `{"text":"` + b.String() + `"}`
	}},
	{"base64", true, func(t string) string {
		return `{"data":"` + base64.StdEncoding.EncodeToString([]byte("first\n"+t+"\nlast\n")) + `"}`
	}},
	{"base64 for URLs, in a text", false, func(t string) string {
		return "see " + base64.RawURLEncoding.EncodeToString([]byte("??>\n"+t+"\nlast ~~~\n")) + " for more"
	}},
}

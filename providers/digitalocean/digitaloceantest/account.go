package digitaloceantest

import (
	"net/http"
	"slices"
	"strconv"
)

// Prepayment is what the balance of a team is told as.
type Prepayment struct {
	Balance             string `json:"balance"`
	Blocked             bool   `json:"blocked"`
	Eligible            bool   `json:"eligible"`
	IsAutoPrepayEnabled bool   `json:"is_auto_prepay_enabled"`
	MonthToDateBalance  string `json:"month_to_date_balance"`
}

func (c *call) account() answer {
	return ok(map[string]any{"account": map[string]any{
		"droplet_limit": 25, "floating_ip_limit": 5, "reserved_ip_limit": 5, "volume_limit": 10,
		"email": c.team.Email, "uuid": c.team.UserUUID, "email_verified": true, "status": "active",
		"team": map[string]any{"name": c.team.Name, "uuid": c.team.UUID},
	}})
}

func (c *call) prepayment() answer { return ok(map[string]any{"status": c.team.prepaid}) }

// gate refuses what a team without a balance can't do: create, resume, fork,
// exec and input [docs 1 Oct 2026]. Whether it is 402 or 403 is unknown.
func (c *call) gate() (answer, bool) {
	if c.team.balance > 0 {
		return answer{}, false
	}
	return refuse(c.s.opts.NoBalance, "insufficient prepaid balance"), true
}

func (c *call) regions() answer {
	regions := []map[string]any{}
	for _, slug := range slices.Sorted(slices.Values(c.s.opts.Regions)) {
		entry := map[string]any{"slug": slug}
		if slug == c.s.opts.Regions[0] {
			entry["is_default"] = true
		}
		regions = append(regions, entry)
	}
	return ok(map[string]any{"regions": regions})
}

// size is one row of the catalogue of sandboxes. Prices are those of CPU and
// memory at full use [third party, 8 Oct 2026].
type size struct {
	Slug     string  `json:"slug"`
	VCPUs    int     `json:"vcpus"`
	MemoryMB int     `json:"memory_mb"`
	Hour     float64 `json:"price_per_hour_usd"`
	Month    float64 `json:"price_per_month_usd"`
}

const defaultSize = "mars-2vcpu-4gb"

func sizeList() []size {
	list := []size{
		{"mars-1vcpu-1gb", 1, 1024, 0.0535, 0},
		{"mars-2vcpu-2gb", 2, 2048, 0.107, 0},
		{defaultSize, 2, 4096, 0.126, 0},
		{"mars-4vcpu-8gb", 4, 8192, 0.252, 0},
		{"mars-16vcpu-32gb", 16, 32768, 1.008, 0},
	}
	for i := range list {
		list[i].Month = list[i].Hour * 672
	}
	return list
}

func (c *call) sizes() answer { return ok(map[string]any{"sizes": sizeList()}) }

// trigger can wake a session that is bound to it.
type trigger struct {
	id, name string
	team     *team
	session  string
}

func (c *call) triggerList() answer {
	bound := c.r.URL.Query().Get("bound_session_id")
	var rows []row
	for i, t := range slices.Backward(c.s.triggers) {
		if t.team != c.team || bound != "" && t.session != bound {
			continue
		}
		rows = append(rows, row{i, map[string]any{
			"trigger_id": t.id, "name": t.name, "kind": "cron", "status": "active", "session_mode": "reuse",
			"bound_session_id": t.session,
		}})
	}
	return c.page("triggers", rows)
}

const loginPath = "/login"

// serveLogin is where the redirect of a session that has run out leads to.
func serveLogin(w http.ResponseWriter) {
	const page = "<!DOCTYPE html><html><head><title>Log in</title></head><body>Log in</body></html>"
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	_, _ = w.Write([]byte(page))
}

package digitaloceantest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"
)

// config is an immutable configuration, an "Environment".
type config struct {
	id, name string
	team     *team
	region   string
	spec     *spec
	hash     string
	created  time.Time
	deleted  bool
}

// newConfig makes a configuration without adding it. The lock is held.
func (s *Server) newConfig(c *call, name string, sp *spec) *config {
	for _, value := range sp.secrets {
		s.secrets[value] = true
	}
	raw, _ := json.Marshal(sp.manifest)
	sum := sha256.Sum256(raw)
	return &config{
		id: s.newID("config"), name: name, team: c.team, region: c.region, spec: sp, hash: hex.EncodeToString(sum[:]),
		created: c.now,
	}
}

// config finds a configuration of the caller's team and region. The lock is
// held.
func (s *Server) config(c *call, id string) *config {
	for _, cfg := range s.configs {
		if cfg.id == id && cfg.team == c.team && cfg.region == c.region && !cfg.deleted {
			return cfg
		}
	}
	return nil
}

func (cfg *config) summary() map[string]any {
	return map[string]any{
		"id": cfg.id, "name": cfg.name, "agentspec_schema_version": schemaVersion, "content_hash": cfg.hash,
		"created_by": cfg.team.UserUUID, "created_at": stamp(cfg.created), "updated_at": stamp(cfg.created), "region": cfg.region,
	}
}

func (cfg *config) json() map[string]any {
	out := cfg.summary()
	out["manifest"] = cfg.spec.manifest
	if len(cfg.spec.slots) > 0 {
		out["credentials"] = cfg.spec.slots
	}
	return out
}

func (c *call) configCreate() answer {
	var in struct {
		Name         string `json:"name"`
		ManifestYAML string `json:"manifest_yaml"`
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	if in.Name == "" {
		return refuse(http.StatusBadRequest, "name is required")
	}
	sp, err := c.s.parseManifest([]byte(in.ManifestYAML))
	if err != nil {
		return refuse(http.StatusBadRequest, "%s", err.Error())
	}
	cfg := c.s.newConfig(c, in.Name, sp)
	c.s.configs = append(c.s.configs, cfg)
	return answer{status: http.StatusCreated, body: map[string]any{"config": cfg.json()}, header: c.placed("configs", cfg.id)}
}

func (c *call) configGet() answer {
	cfg := c.s.config(c, c.ids[0])
	if cfg == nil {
		return refuse(http.StatusNotFound, "config not found")
	}
	return ok(map[string]any{"config": cfg.json()})
}

func (c *call) configList() answer {
	var rows []row
	for i, cfg := range slices.Backward(c.s.configs) {
		if cfg.team == c.team && cfg.region == c.region && !cfg.deleted {
			rows = append(rows, row{i, cfg.summary()})
		}
	}
	return c.page("configs", rows)
}

func (c *call) configDelete() answer {
	cfg := c.s.config(c, c.ids[0])
	if cfg == nil {
		return refuse(http.StatusNotFound, "config not found")
	}
	used := slices.ContainsFunc(c.s.sessions, func(ses *session) bool { return ses.configID == cfg.id && ses.live() })
	if used && c.s.opts.HoldConfigs {
		return refuse(http.StatusConflict, "config is used by active sessions")
	}
	cfg.deleted = true
	return done()
}

// configClone copies everything but the credentials [docs 6 Nov 2026].
func (c *call) configClone() answer {
	cfg := c.s.config(c, c.ids[0])
	if cfg == nil {
		return refuse(http.StatusNotFound, "config not found")
	}
	var in struct {
		Name string `json:"name"`
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	if in.Name == "" {
		return refuse(http.StatusBadRequest, "name is required")
	}
	sp := *cfg.spec
	sp.secrets, sp.slots = nil, nil
	sp.manifest = maps.Clone(sp.manifest)
	delete(sp.manifest, "secrets")
	clone := c.s.newConfig(c, in.Name, &sp)
	c.s.configs = append(c.s.configs, clone)
	return answer{status: http.StatusCreated, body: map[string]any{"config": clone.json()}, header: c.placed("configs", clone.id)}
}

// validate is the check of a manifest that creates nothing.
func (c *call) validate() answer {
	if !isYAML(c.r) {
		return refuse(http.StatusUnsupportedMediaType, "a manifest is YAML")
	}
	sp, err := c.s.parseManifest(c.body)
	if err != nil {
		return refuse(http.StatusBadRequest, "%s", err.Error())
	}
	if sp.placeholder {
		return refuse(http.StatusBadRequest, "manifest holds a ${...} that was not expanded")
	}
	return ok(map[string]any{"agent": sp.agent, "ok": true, "verdicts": []any{}})
}

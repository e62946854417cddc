package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"

	"github.com/openhands/boxkeeper/box"
)

const maxFileBytes = 1 << 20

// value is one setting as it was given.
type value struct {
	text string
	list []string
	from string // the key or variable to name in an error
}

// values collects what was given; what came first stays, so the environment is
// read before the file.
type values struct {
	top map[string]value
	// named are the settings of what has a name: by section, name and setting.
	named map[string]map[string]map[string]value
}

func newValues() *values {
	return &values{top: map[string]value{}, named: map[string]map[string]map[string]value{sectionProviders: {}, sectionWebhooks: {}}}
}

func (v *values) set(key, instance string, given value) {
	into := v.top
	if instance != "" {
		parts := strings.SplitN(key, ".", 3)
		into, key = v.at(parts[0], instance), parts[2]
	}
	if _, given := into[key]; given {
		return
	}
	into[key] = given
}

// at returns the settings of a name, which is known from then on.
func (v *values) at(section, name string) map[string]value {
	if v.named[section][name] == nil {
		v.named[section][name] = map[string]value{}
	}
	return v.named[section][name]
}

// fromEnv takes the variables that name no instance.
func (v *values) fromEnv(env Lookup) error {
	for _, s := range Settings() {
		if strings.Contains(s.Key, ".*.") {
			continue
		}
		if err := v.oneFromEnv(env, s, s.Env, ""); err != nil {
			return err
		}
	}
	return nil
}

// instancesFromEnv takes the instances that the environment alone adds: those
// called like a driver, whose variable for it is set. Of other names it cannot be
// asked.
func (v *values) instancesFromEnv(env Lookup) {
	for _, name := range Drivers() {
		if _, set := env(instanceEnv(sectionProviders, name, SettingDriver)); set {
			v.at(sectionProviders, name)
		}
	}
}

// only leaves the named instances, all when none is named.
func (v *values) only(instances []string) error {
	for _, name := range instances {
		if v.named[sectionProviders][name] == nil && !slices.Contains(Drivers(), name) {
			return box.Invalidf("provider", "no instance %q is configured, and no driver is called so; \"config\" lists the instances, and the drivers are %s", printable(name), strings.Join(Drivers(), ", "))
		}
		v.at(sectionProviders, name)
	}
	if len(instances) > 0 {
		maps.DeleteFunc(v.named[sectionProviders], func(name string, _ map[string]value) bool { return !slices.Contains(instances, name) })
	}
	return nil
}

// namedFromEnv takes the variables of the names that are known: those of the
// file, the default instance when there is no other, and the webhook that the
// environment alone can set.
func (v *values) namedFromEnv(env Lookup) error {
	if len(v.named[sectionProviders]) == 0 {
		v.at(sectionProviders, defaultProvider)
	}
	if _, set := env(instanceEnv(sectionWebhooks, defaultWebhook, settingURL)); set {
		v.at(sectionWebhooks, defaultWebhook)
	}
	for _, s := range Settings() {
		section, setting, ok := strings.Cut(s.Key, ".*.")
		if !ok {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(v.named[section])) {
			variable := instanceEnv(section, name, setting)
			if _, set := env(variable); set {
				delete(v.named[section][name], setting) // the environment wins
			}
			if err := v.oneFromEnv(env, s, variable, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *values) oneFromEnv(env Lookup, s Setting, variable, instance string) error {
	text, ok := env(variable)
	if !ok {
		return nil
	}
	given := value{text: text, from: variable}
	switch {
	case text == "":
		return box.Invalidf(variable, "is set and empty; unset it for the default, or give %s", s.Form)
	case s.kind == kindList:
		if err := json.Unmarshal([]byte(text), &given.list); err != nil {
			return box.Invalidf(variable, "is not a list; write it as a JSON array, like [\"a\", \"b\"]")
		}
		given.list = orNone(given.list)
	case s.kind == kindPath:
		abs, err := filepath.Abs(text)
		if err != nil {
			return box.Invalidf(variable, "resolve the path: %v", err)
		}
		given.text = abs
	}
	v.set(s.Key, instance, given)
	return nil
}

// fromFile takes what the environment did not set. A file that was found in the
// data directory may not move that directory.
func (v *values) fromFile(path string, found bool) error {
	data, err := readSmall(path, maxFileBytes)
	if err != nil {
		return box.Invalidf("config", "read %s: %v; check the path", path, err)
	}
	var tree map[string]any
	if _, err := toml.Decode(string(data), &tree); err != nil {
		where := ""
		if parse, ok := errors.AsType[toml.ParseError](err); ok {
			// Its message may repeat a line; the place is enough.
			where = fmt.Sprintf(" (line %d)", parse.Position.Line)
		}
		return box.Invalidf("config", "%s is not valid TOML%s; see docs/configuration.md for the form", path, where)
	}
	return v.walk(path, "", tree, found)
}

func (v *values) walk(path, prefix string, tree map[string]any, found bool) error {
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		key := prefix + name
		row, instance, known := settingByKey(key)
		if inner, ok := tree[name].(map[string]any); ok && !known {
			if !isSection(key) {
				return unknownKey(key, path)
			}
			if section, name, ok := strings.Cut(key, "."); ok {
				if err := checkInstance(key, name); err != nil {
					return err
				}
				v.at(section, name)
			}
			if err := v.walk(path, key+".", inner, found); err != nil {
				return err
			}
			continue
		}
		if !known {
			return unknownKey(key, path)
		}
		if key == settingData && found {
			return box.Invalidf(key, "cannot be set in %s, which was found in the data directory itself; name the file with --config or BOXKEEPER_CONFIG", path)
		}
		given, err := fromTOML(key, row, tree[name], filepath.Dir(path))
		if err != nil {
			return err
		}
		v.set(row.Key, instance, given)
	}
	return nil
}

// isSection reports whether a table may stand there.
func isSection(key string) bool {
	switch key {
	case "log", "specs", "encryption":
		return true
	}
	section, name, below := strings.Cut(key, ".")
	return named(section) && (!below || !strings.Contains(name, "."))
}

func unknownKey(key, path string) error {
	var names []string
	for _, s := range Settings() {
		names = append(names, s.Key)
	}
	return box.Invalidf(printable(key), "is not a setting (in %s); there are %s", path, strings.Join(names, ", "))
}

func fromTOML(key string, row Setting, raw any, dir string) (value, error) {
	given := value{from: key}
	if row.kind == kindList {
		items, ok := raw.([]any)
		if !ok {
			return given, box.Invalidf(key, "must be a list of texts, like [\"a\", \"b\"]")
		}
		for _, item := range items {
			text, ok := item.(string)
			if !ok {
				return given, box.Invalidf(key, "must be a list of texts, like [\"a\", \"b\"]")
			}
			given.list = append(given.list, text)
		}
		given.list = orNone(given.list)
		return given, nil
	}
	if n, ok := raw.(int64); ok && row.kind == kindNumber {
		raw = strconv.FormatInt(n, 10)
	}
	text, ok := raw.(string)
	switch {
	case !ok:
		return given, box.Invalidf(key, "must be a text in quotes: %s", row.Form)
	case text == "":
		return given, box.Invalidf(key, "is empty; leave it out for the default, or give %s", row.Form)
	}
	if row.kind == kindPath && !filepath.IsAbs(text) {
		text = filepath.Join(dir, text)
	}
	given.text = text
	return given, nil
}

// orNone keeps "an empty list" apart from "not set".
func orNone(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// readSmall reads a regular file of at most so many bytes. It never waits for a
// writer, as a pipe would make it.
func readSmall(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, bare(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	var buf bytes.Buffer
	if _, err := io.Copy(&buf, io.LimitReader(f, most+1)); err != nil {
		return nil, bare(err)
	}
	if int64(buf.Len()) > most {
		return nil, fmt.Errorf("it is larger than %d bytes", most)
	}
	return buf.Bytes(), nil
}

// bare takes the path out of an error whose message names it already.
func bare(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// printable cuts what a file said and takes control characters out.
func printable(text string) string {
	const most = 100
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}

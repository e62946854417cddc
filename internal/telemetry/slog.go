package telemetry

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Slog returns a logger of the standard library that writes where l does, for
// packages that know no other.
func Slog(l *zap.Logger) *slog.Logger { return slog.New(slogHandler{core: l.Core()}) }

type slogHandler struct {
	core   zapcore.Core
	groups []string
}

func (h slogHandler) Enabled(_ context.Context, level slog.Level) bool {
	return h.core.Enabled(zapLevel(level))
}

func (h slogHandler) Handle(_ context.Context, r slog.Record) error {
	entry := zapcore.Entry{Level: zapLevel(r.Level), Time: r.Time, Message: r.Message}
	if r.PC != 0 {
		frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		entry.Caller = zapcore.NewEntryCaller(frame.PC, frame.File, frame.Line, true)
	}
	checked := h.core.Check(entry, nil)
	if checked == nil {
		return nil
	}
	var fields []zapcore.Field
	r.Attrs(func(a slog.Attr) bool {
		fields = h.add(fields, h.groups, a)
		return true
	})
	checked.Write(fields...)
	return nil
}

func (h slogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var fields []zapcore.Field
	for _, a := range attrs {
		fields = h.add(fields, h.groups, a)
	}
	return slogHandler{core: h.core.With(fields), groups: h.groups}
}

func (h slogHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return slogHandler{core: h.core, groups: append(slices.Clone(h.groups), name)}
}

// add appends an attribute; groups become prefixes of its name.
func (h slogHandler) add(fields []zapcore.Field, groups []string, a slog.Attr) []zapcore.Field {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			groups = append(slices.Clone(groups), a.Key)
		}
		for _, inner := range value.Group() {
			fields = h.add(fields, groups, inner)
		}
		return fields
	}
	if a.Equal(slog.Attr{}) {
		return fields
	}
	var name strings.Builder
	for _, g := range groups {
		name.WriteString(g + ".")
	}
	return append(fields, zap.Any(name.String()+a.Key, value.Any()))
}

func zapLevel(level slog.Level) zapcore.Level {
	switch {
	case level < slog.LevelInfo:
		return zapcore.DebugLevel
	case level < slog.LevelWarn:
		return zapcore.InfoLevel
	case level < slog.LevelError:
		return zapcore.WarnLevel
	}
	return zapcore.ErrorLevel
}

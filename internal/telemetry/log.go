package telemetry

import (
	"io"

	"go.temporal.io/sdk/log"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/openhands/boxkeeper/box"
)

// LogOptions say what is logged and how; the zero value is info, for people.
type LogOptions struct {
	Level  string // debug, info, warn or error
	Format string // console or json
	// Redactor masks secrets that become known later; nil masks only those
	// that NewLogger is given.
	Redactor *Redactor
}

// NewLogger returns a logger that writes lines to w, each with one call, and
// masks the given secrets in them. Messages stay on one line and cannot drive a
// terminal. An unknown level or format is Invalid.
func NewLogger(w io.Writer, o LogOptions, secrets ...box.Secret) (*zap.Logger, error) {
	level := zapcore.InfoLevel
	if o.Level != "" {
		var err error
		if level, err = zapcore.ParseLevel(o.Level); err != nil || level > zapcore.ErrorLevel {
			return nil, box.Invalidf("log.level", "%q is not a level; use debug, info, warn or error", o.Level)
		}
	}
	redactor := o.Redactor
	if redactor == nil {
		redactor = &Redactor{}
	}
	redactor.Add(secrets...)

	form := zap.NewProductionEncoderConfig()
	form.EncodeTime = zapcore.ISO8601TimeEncoder
	form.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch o.Format {
	case "", "console":
		form.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(form)
	case "json":
		encoder = zapcore.NewJSONEncoder(form)
	default:
		return nil, box.Invalidf("log.format", "%q is not a format; use console or json", o.Format)
	}
	out := zapcore.Lock(zapcore.AddSync(redactingWriter{w, redactor}))
	return zap.New(oneLine{zapcore.NewCore(encoder, out, level), redactor}, zap.AddCaller()), nil
}

// oneLine escapes control characters in messages: much of what is logged was
// said by a server or a box. Fields are JSON in both formats. Secrets in a
// message are masked here already: once escaped they could not be recognised.
type oneLine struct {
	zapcore.Core

	redactor *Redactor
}

func (c oneLine) With(fields []zapcore.Field) zapcore.Core {
	return oneLine{c.Core.With(fields), c.redactor}
}

func (c oneLine) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c oneLine) Write(e zapcore.Entry, fields []zapcore.Field) error {
	e.Message = escape(c.redactor.Redact(e.Message))
	return c.Core.Write(e, fields)
}

// temporalLogger is a zap logger as the Temporal SDK wants one.
type temporalLogger struct{ sugar *zap.SugaredLogger }

var (
	_ log.Logger          = temporalLogger{}
	_ log.WithLogger      = temporalLogger{}
	_ log.WithSkipCallers = temporalLogger{}
)

// TemporalLogger returns l for the Temporal SDK's client and workers.
func TemporalLogger(l *zap.Logger) log.Logger {
	return temporalLogger{l.WithOptions(zap.AddCallerSkip(1)).Sugar()}
}

func (l temporalLogger) Debug(msg string, keyvals ...any) { l.sugar.Debugw(msg, pairs(keyvals)...) }
func (l temporalLogger) Info(msg string, keyvals ...any)  { l.sugar.Infow(msg, pairs(keyvals)...) }
func (l temporalLogger) Warn(msg string, keyvals ...any)  { l.sugar.Warnw(msg, pairs(keyvals)...) }
func (l temporalLogger) Error(msg string, keyvals ...any) { l.sugar.Errorw(msg, pairs(keyvals)...) }

// With returns a logger that adds the pairs to each line.
func (l temporalLogger) With(keyvals ...any) log.Logger {
	return temporalLogger{l.sugar.With(pairs(keyvals)...)}
}

// WithCallerSkip returns a logger that names a caller further up.
func (l temporalLogger) WithCallerSkip(depth int) log.Logger {
	return temporalLogger{l.sugar.WithOptions(zap.AddCallerSkip(depth))}
}

// pairs makes any list of keys and values one that zap takes without complaint:
// a key that is no text, or one without a value, is kept under another name.
func pairs(keyvals []any) []any {
	out := make([]any, 0, len(keyvals)+1)
	for i := 0; i < len(keyvals); i += 2 {
		key, isText := keyvals[i].(string)
		if i+1 == len(keyvals) {
			return append(out, "extra", keyvals[i])
		}
		if !isText {
			out = append(out, "extra", keyvals[i])
			key = "value"
		}
		out = append(out, key, keyvals[i+1])
	}
	return out
}

package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"unicode"

	"go.opentelemetry.io/otel/trace"
)

// Redacted replaces a secret in logs.
const Redacted = "[redacted]"

// NewLogger returns a logger that writes to w. format is "text" (default) or "json". level is "debug", "info"
// (default), "warn" or "error".
//
// A line that is logged with the context of a span has trace_id and span_id. The value of an attribute with a
// secret's name is logged as Redacted; see the test for examples of names. This is only a safety net: it does not see
// values inside a struct or a message.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if level != "" {
		if err := least.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
		}
	}
	options := &slog.HandlerOptions{Level: least, ReplaceAttr: redactAttr}
	var handler slog.Handler
	switch format {
	case "text", "":
		handler = slog.NewTextHandler(w, options)
	case "json":
		handler = slog.NewJSONHandler(w, options)
	default:
		return nil, fmt.Errorf("log format %q: use text or json", format)
	}
	return slog.New(traceHandler{handler}), nil
}

// redactAttr replaces secrets, by the name of the attribute or of a group around it.
func redactAttr(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindGroup {
		return a // redact is called for each member
	}
	if secretName(a.Key) || slices.ContainsFunc(groups, secretName) {
		a.Value = slog.StringValue(Redacted)
	}
	return a
}

var (
	secretWords = []string{
		"authorization", "cookie", "credential", "credentials", "dsn", "passphrase", "passwd", "password",
		"passwords", "pwd", "secret", "secrets", "token", "apikey",
	}
	// secretKeys mark a secret only if the next word is "key" or "keys".
	secretKeys = []string{"api", "private", "encryption", "signing"}
	// harmlessEnds are the last words in names of values that describe a secret and do not contain it.
	harmlessEnds = []string{"id", "name", "names", "count", "version"}
)

func secretName(name string) bool {
	words := splitWords(name)
	if len(words) == 0 || slices.Contains(harmlessEnds, words[len(words)-1]) {
		return false
	}
	for i, w := range words {
		if slices.Contains(secretWords, w) {
			return true
		}
		if i > 0 && (w == "key" || w == "keys") && slices.Contains(secretKeys, words[i-1]) {
			return true
		}
	}
	return false
}

// splitWords returns the words of snake_case, kebab-case, dotted and camelCase names in lower case.
func splitWords(name string) []string {
	var spaced strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			spaced.WriteByte(' ')
		}
		lower = unicode.IsLower(r)
		spaced.WriteRune(unicode.ToLower(r))
	}
	return strings.FieldsFunc(spaced.String(), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// traceHandler adds the ids of the context's span.
type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}

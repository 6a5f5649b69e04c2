package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// show prints a message in the format of --output. It calls table for people.
func (a *app) show(msg proto.Message, table func(w *tabwriter.Writer)) error {
	if a.output == "table" {
		w := tabwriter.NewWriter(a.Stdout, 0, 4, 3, ' ', 0)
		table(w)
		return w.Flush()
	}
	data, err := protojson.MarshalOptions{EmitUnpopulated: false}.Marshal(msg)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.raw(data)
}

// done prints one line about what a command did. For programs it also prints the answer of the API.
func (a *app) done(answer proto.Message, format string, args ...any) error {
	a.infof(format, args...)
	if a.output == "table" {
		return nil
	}
	return a.show(answer, nil)
}

// showOutcome prints for programs the answer of the API to a command that started something, the outcome, and
// the last states of the app and its rollout.
func (a *app) showOutcome(answer proto.Message, outcome string, last *windlassv1.WatchAppResponse, ro *windlassv1.Rollout) error {
	more := map[string]any{"outcome": outcome}
	if app := last.GetApp(); app != nil {
		more["app"] = app
	}
	if ro != nil {
		more["rollout"] = ro
	}
	return a.showWith(answer, more)
}

// showWith prints for programs the answer of the API with more fields. Values are messages, or values that
// encoding/json encodes.
func (a *app) showWith(answer proto.Message, more map[string]any) error {
	fields := map[string]json.RawMessage{}
	data, err := protojson.Marshal(answer)
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	for key, value := range more {
		encode := func() ([]byte, error) { return json.Marshal(value) }
		if m, ok := value.(proto.Message); ok {
			encode = func() ([]byte, error) { return protojson.Marshal(m) }
		}
		encoded, encodeErr := encode()
		fields[key], err = encoded, errors.Join(err, encodeErr)
	}
	data, encodeErr := json.Marshal(fields)
	if err := errors.Join(err, encodeErr); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.raw(data)
}

// showList prints the messages of a list as one JSON array.
func showList[M proto.Message](a *app, items []M, table func(w *tabwriter.Writer)) error {
	if a.output == "table" {
		return a.show(nil, table)
	}
	all, err := encodeAll(items)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.showValue(all)
}

// encodeAll returns the JSON of each message.
func encodeAll[M proto.Message](items []M) ([]json.RawMessage, error) {
	all := make([]json.RawMessage, 0, len(items))
	for _, item := range items {
		data, err := protojson.Marshal(item)
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

// showValue prints for programs a value that is no message of the API.
func (a *app) showValue(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.raw(data)
}

// raw prints JSON, indented or converted to YAML. It formats the JSON again, because protojson varies its
// spacing on purpose.
func (a *app) raw(data []byte) error {
	if a.output == "yaml" {
		out, err := yaml.JSONToYAML(inYAML(data))
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		if a.documents++; a.documents > 1 {
			out = append([]byte("---\n"), out...)
		}
		_, err = a.data().Write(out)
		return err
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	enc := json.NewEncoder(a.data())
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// inYAML escapes the characters of JSON that YAML allows only as escapes.
func inYAML(data []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(data) {
		switch {
		case r > '~' && r < '\u00a0', r == '\ufeff', r == '\ufffe', r == '\uffff':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t") //nolint:errcheck // the writer's Flush tells
		}
		fmt.Fprint(w, oneLine(fmt.Sprint(c))) //nolint:errcheck // the writer's Flush tells
	}
	fmt.Fprintln(w) //nolint:errcheck // the writer's Flush tells
}

// word turns the name of an enum value into the word for people: APP_STATUS_READY is "ready".
func word(enum fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(enum.String(), prefix)), "_", "-")
}

// ago returns how long ago a time of the API was.
func ago(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return short(time.Since(time.UnixMilli(ms)))
}

func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

func clock(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Local().Format("2006-01-02 15:04:05")
}

func version(v int32) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("v%d", v)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// because joins a reason and its message.
func because(reason, message string) string {
	switch {
	case reason == "":
		return message
	case message == "" || message == reason:
		return reason
	}
	return reason + ": " + message
}

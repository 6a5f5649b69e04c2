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

// showMessage prints a message in the format of --output. It calls table for people.
func (a *app) showMessage(msg proto.Message, table func(w *tabwriter.Writer)) error {
	if a.output == "table" {
		w := tabwriter.NewWriter(a.Stdout, 0, 4, 3, ' ', 0)
		table(w)
		return w.Flush()
	}
	data, err := protojson.MarshalOptions{EmitUnpopulated: false}.Marshal(msg)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.printJSON(data)
}

// showDone prints one line about what a command did. For programs it also prints the answer of the API.
func (a *app) showDone(answer proto.Message, format string, args ...any) error {
	a.infof(format, args...)
	if a.output == "table" {
		return nil
	}
	return a.showMessage(answer, nil)
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
	return a.printJSON(data)
}

// showList prints a list: for people as a table, else as an array of the messages.
func showList[M proto.Message](a *app, items []M, table func(w *tabwriter.Writer)) error {
	if a.output == "table" {
		return a.showMessage(nil, table)
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

// showValue prints for programs a value that is not a message of the API.
func (a *app) showValue(value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.printJSON(data)
}

// printJSON prints JSON, indented or converted to YAML. It formats the JSON again, because protojson varies its
// spacing on purpose.
func (a *app) printJSON(data []byte) error {
	if a.output == "yaml" {
		out, err := yaml.JSONToYAML(inYAML(data))
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		if a.documents++; a.documents > 1 {
			out = append([]byte("---\n"), out...)
		}
		_, err = a.dataWriter().Write(out)
		return err
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	enc := json.NewEncoder(a.dataWriter())
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

// writeRow writes a row of a table.
func writeRow(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t") //nolint:errcheck // the writer's Flush returns the error
		}
		fmt.Fprint(w, oneLine(fmt.Sprint(c))) //nolint:errcheck // the writer's Flush returns the error
	}
	fmt.Fprintln(w) //nolint:errcheck // the writer's Flush returns the error
}

// enumText turns the name of an enum value into the word for people: APP_STATUS_READY is "ready".
func enumText(enum fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(enum.String(), prefix)), "_", "-")
}

// ageText returns how long ago a time of the API was, or "-" for 0.
func ageText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return durationText(time.Since(time.UnixMilli(ms)))
}

// durationText returns a duration in one or two units.
func durationText(d time.Duration) string {
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

// timeText returns a time of the API in the local time zone, or "-" for 0.
func timeText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Local().Format("2006-01-02 15:04:05")
}

// versionText returns the name of a version, such as v3, or "-" for 0.
func versionText(v int32) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("v%d", v)
}

// orDash returns the text, or "-" if it is empty.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// reasonText joins a reason and its message.
func reasonText(reason, message string) string {
	switch {
	case reason == "":
		return message
	case message == "" || message == reason:
		return reason
	}
	return reason + ": " + message
}

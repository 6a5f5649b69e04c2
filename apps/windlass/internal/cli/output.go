package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// show prints a message as the user asked for it: table is called for people.
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

// showList prints the messages of a list as one JSON array.
func showList[M proto.Message](a *app, items []M, table func(w *tabwriter.Writer)) error {
	if a.output == "table" {
		return a.show(nil, table)
	}
	all := make([]json.RawMessage, 0, len(items))
	for _, item := range items {
		data, err := protojson.Marshal(item)
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		all = append(all, data)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	return a.raw(data)
}

// raw prints JSON, indented, or as YAML. protojson varies its spacing on purpose,
// so that it is laid out again here.
func (a *app) raw(data []byte) error {
	if a.output == "yaml" {
		out, err := yaml.JSONToYAML(data)
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		_, err = a.Stdout.Write(out)
		return err
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t") //nolint:errcheck // the writer's Flush tells
		}
		fmt.Fprint(w, c) //nolint:errcheck // the writer's Flush tells
	}
	fmt.Fprintln(w) //nolint:errcheck // the writer's Flush tells
}

// word turns an enum's name into what people read: APP_STATUS_READY is "ready".
func word(enum fmt.Stringer, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(enum.String(), prefix)), "_", "-")
}

// ago is how long ago a time of the API was.
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

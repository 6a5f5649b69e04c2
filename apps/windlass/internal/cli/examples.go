package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// mappingExample is an example of a mapping of a file. An error shows it for a value that is no mapping.
type mappingExample struct {
	// format is the example in YAML. Its %s is the value of field.
	format string
	// field is the field that a single value most likely means. value is its value in the example.
	field protoreflect.Name
	value string
}

// mappingExamples has an example of each message that a file can contain, by the name of the message.
var mappingExamples = map[protoreflect.Name]mappingExample{
	"Affinity":          {"{header: %s}", "header", "X-Session"},
	"AnalysisCheck":     {"{template: %s}", "template", "latencyP95"},
	"Approval":          {"{count: %s}", "count", "1"},
	"AutoRollback":      {"{enabled: %s}", "enabled", "true"},
	"CanaryStep":        {"{weight: %s, pause: 10m}", "weight", "10"},
	"ColdStart":         {"{hold: 30s, maxHeld: %s}", "max_held", "100"},
	"Cors":              {`{allowedOrigins: ["https://example.com"], credentials: %s}`, "credentials", "true"},
	"Deadlines":         {"{progress: 10m}", "", ""},
	"Gang":              {"{of: %s}", "of", "unit"},
	"Gpu":               {"{count: %s}", "count", "1"},
	"HealthCheck":       {"{path: %s}", "path", "/health"},
	"KubernetesOptions": {"{priorityClass: %s}", "priority_class", "inference"},
	"LoadedModel":       {"{name: %s}", "name", "summaries"},
	"ModelArtifact":     {"{url: %s}", "url", `"oci://registry.example.com/fraud@sha256:6ae8a75555209fd6c44157c0aed8016e763ff435a19cf186f76863140143ff72"`},
	"ModelCache":        {"{mountPath: %s, claim: {sizeGib: 200}}", "mount_path", "/models"},
	"ModelEviction":     {"{perMinute: %s}", "per_minute", "10"},
	"ModelFacts":        {"{layers: %s}", "layers", "80"},
	"ModelServer":       {"{protocol: %s}", "protocol", "v2"},
	"Override":          {"{regions: [eu-west-1], replicas: %s}", "replicas", "1"},
	"Pairing":           {"{engine: %s}", "engine", "nixl"},
	"Parallelism":       {"{tensor: %s}", "tensor", "2"},
	"PayloadLog":        {"{sample: %s}", "sample", "0.01"},
	"PoolUpdate":        {"{order: %s}", "order", "coherent"},
	"Port":              {"{name: http, port: %s}", "port", "8080"},
	"PresetArg":         {"{flag: %s}", "flag", "--verbose"},
	"PresetExample":     {`{name: %s, serve: {engine: "custom:NAME", model: "hf://org/model"}}`, "name", "small"},
	"PresetHosts":       {`{engineFrom: %s}`, "engine_from", `"0.12.0"`},
	"PresetMetric":      {"{signal: queue, metric: %s}", "metric", "queue_length"},
	"PresetRule":        {"{when: %s, message: what is wrong}", "when", `context > 4096`},
	"PresetSource":      {"{about: flags, page: %s}", "page", "https://example.com/docs"},
	"PresetVariable":    {`{name: %s, value: "1"}`, "name", "LOG_LEVEL"},
	"Resources":         {"{cpuMillicores: %s, memoryMib: 512}", "cpu_millicores", "500"},
	"RoleOverride":      {"{name: %s, instances: 2}", "name", "decode"},
	"RoleScaling":       {"{role: %s, max: 10}", "role", "decode"},
	"RoleSpec":          {"{name: %s}", "name", "decode"},
	"RolloutPolicy":     {"{strategy: %s}", "strategy", "rolling"},
	"RoutingPolicy":     {"{balancing: %s}", "balancing", "leastRequests"},
	"ScaleToZero":       {"{after: 30m, wakeTo: %s}", "wake_to", "1"},
	"ScalingCouple":     {"{role: %s, ratio: [1, 2]}", "role", "prefill"},
	"ScalingMetric":     {"{type: %s}", "type", "inFlight"},
	"ScalingOverride":   {"{regions: [eu-west-1], max: %s}", "max", "10"},
	"ScalingPace":       {"{step: %s}", "step", "25%"},
	"ScalingPolicy":     {"{max: %s}", "max", "10"},
	"ScalingSchedule":   {`{cron: %s, for: 1h, min: 2}`, "cron", `"0 8 * * 1-5"`},
	"SecretReference":   {"{secret: %s, envName: TOKEN}", "secret", "token"},
	"SecurityException": {"{reason: %s, hostIpc: true}", "reason", "shared memory of the node"},
	"Serve":             {`{engine: vllm, model: %s}`, "model", `"hf://org/model"`},
	"Toleration":        {"{key: %s}", "key", "nvidia.com/gpu"},
	"Topology":          {"{pack: %s}", "pack", "rack"},
	"VersusOld":         {"{maxRatio: %s}", "max_ratio", "1.2"},
	"VolumeClaim":       {"{sizeGib: %s}", "size_gib", "200"},
	"Wave":              {"{regions: [eu-west-1], maxParallel: %s}", "max_parallel", "1"},
	"WebHook":           {"{url: %s}", "url", `"https://example.com/check"`},
	"WeeklyWindow":      {`{start: %s, end: "Mon 08:00"}`, "start", `"Fri 16:00"`},
	"FileFreeze":        {"{reason: %s}", "reason", "no on-call engineer"},
}

// exampleOf returns an example of a mapping with the schema, in YAML. It contains value, if value fits a field of the
// example. It returns "" for a schema without an example.
func exampleOf(schema protoreflect.MessageDescriptor, value any) string {
	e, ok := mappingExamples[schema.Name()]
	if !ok {
		return ""
	}
	if e.field == "" {
		return e.format
	}
	text := e.value
	if value != nil {
		if _, err := checkScalar(schema.Fields().ByName(e.field), value); err == nil {
			text = flowText(value)
		}
	}
	return fmt.Sprintf(e.format, text)
}

// writeExample returns the fix for a value that is no mapping with the schema.
func writeExample(schema protoreflect.MessageDescriptor, value any) string {
	example := exampleOf(schema, value)
	if example == "" || len(example) > maxShown {
		return ""
	}
	return ": write for example " + example
}

// listHint returns the fix for a value of a list field that is no list.
func listHint(field protoreflect.FieldDescriptor, value any) string {
	var example string
	switch v := value.(type) {
	case nil:
		return "its items, or leave the field out"
	case string:
		if field.Message() == nil {
			return listOfWords(v)
		}
		example = "[" + exampleOf(field.Message(), v) + "]"
	case map[string]any:
		if field.Message() == nil {
			return "each item on a line of its own, with a dash: - ITEM"
		}
		example = "[" + flowText(v) + "]"
	default:
		example = "[" + flowText(v) + "]"
		if field.Message() != nil {
			example = "[" + exampleOf(field.Message(), v) + "]"
		}
	}
	if len(example) > maxShown {
		return "a dash before each item"
	}
	return example
}

// listOfWords returns a list for a text that was written in place of one: its words, or its parts between commas.
func listOfWords(text string) string {
	words := strings.Fields(text)
	if strings.Contains(text, ",") {
		words = strings.Split(text, ",")
	}
	for i, word := range words {
		words[i] = flowText(strings.TrimSpace(word))
	}
	return "[" + truncateText(strings.Join(words, ", ")) + "]"
}

// flowText returns a value in YAML's flow style, such as {name: http, port: 0}.
func flowText(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		if parsePlain(v) != any(v) || strings.ContainsAny(v, "[]{},:#&*!|>'\"%@`\\\n") || strings.TrimSpace(v) != v || v == "-" || strings.HasPrefix(v, "- ") {
			return strconv.Quote(v)
		}
		return v
	case json.Number:
		return v.String()
	case ambiguous:
		return string(v)
	case []any:
		items := make([]string, 0, len(v))
		for _, item := range v {
			items = append(items, flowText(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		fields := make([]string, 0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			fields = append(fields, flowText(key)+": "+flowText(v[key]))
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	return fmt.Sprint(value)
}

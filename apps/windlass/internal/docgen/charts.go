package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/gateway"
)

// chartsDir has a folder for each Helm chart.
const chartsDir = "deployments/charts"

// chart is a Helm chart. The schema of its values is made from values.yaml: the names, types and comments of
// the values, and the constraints below.
type chart struct {
	name string
	// model describes the program, and command is the command that the chart runs, if the program has several.
	model   func() (*kong.Application, error)
	command string
	// withheld are flags that the value "flags" does not accept, besides the flags that the templates set.
	withheld []string
}

var charts = []chart{
	{
		// With create-keyset, each replica could create a keyset. With metrics-client-ca, probes would fail, because
		// they have no client certificate.
		name: "windlass-controlplane", model: controlplane.CommandLine, command: "serve",
		withheld: []string{"create-keyset", "insecure", "metrics-client-ca"},
	},
	{
		// The flags of the first line are for bare hosts only.
		name: "windlass-agent", model: agent.CommandLine,
		withheld: []string{
			"cpu-millicores", "gpus", "image-command", "instance-groups", "instance-uids", "memory-mib", "model-allow", "model-disk-mib", "pool", "port-isolation", "ports", "trust-all-tenants",
			"context", "kubeconfig", "metrics-client-ca", "namespace",
		},
	},
	{name: "windlass-gateway", model: gateway.CommandLine, withheld: []string{"metrics-client-ca"}},
}

const (
	nameOfObject = `^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// orNone in front of a pattern makes the pattern match "", too.
	orNone = `^$|`
	url    = `^https?://[^@\s/]+(/\S*)?$`
)

// textSchema returns the schema of a text that matches a pattern.
func textSchema(pattern string) object { return object{"type": "string", "pattern": pattern} }

func oneOf(values ...string) object {
	return object{"enum": values}
}

func atLeast(minimum int) object { return object{"minimum": minimum} }

func arrayOf(items object) object { return object{"items": items} }

// constraints are rules for the values of all charts, besides their types, by the path of the value. A key that is
// only the last part of a path applies to all values with that name.
var constraints = map[string]object{
	"secret":       textSchema(orNone + nameOfObject),
	"certificate":  textSchema(orNone + nameOfObject),
	"ca":           textSchema(orNone + nameOfObject),
	"clientCA":     textSchema(orNone + nameOfObject),
	"accessSecret": textSchema(nameOfObject),

	"clientCertificate":            textSchema(orNone + nameOfObject),
	"restate.workflowsCertificate": textSchema(orNone + nameOfObject),

	"key":              textSchema(`^[-._a-zA-Z0-9]+$`),
	"fullnameOverride": {"pattern": orNone + `^[a-z]([-a-z0-9]*[a-z0-9])?$`, "maxLength": 44},
	"replicas":         atLeast(0),
	"labels":           {"additionalProperties": object{"type": "string"}},
	"podLabels":        {"additionalProperties": object{"type": "string"}},
	"podAnnotations":   {"additionalProperties": object{"type": "string"}},
	"annotations":      {"additionalProperties": object{"type": "string"}},
	"nodeSelector":     {"additionalProperties": object{"type": "string"}},
	"tolerations":      arrayOf(object{"type": "object"}),

	"image.repository":  textSchema(`^[a-z0-9][-._a-z0-9:/]*[a-z0-9]$`),
	"image.digest":      textSchema(orNone + `^sha256:[0-9a-f]{64}$`),
	"image.tag":         textSchema(orNone + `^[\w][-.\w]{0,127}$`),
	"image.pullPolicy":  oneOf("Always", "IfNotPresent", "Never"),
	"image.pullSecrets": arrayOf(objectSchema(object{"name": textSchema(nameOfObject)})),

	"env": arrayOf(object{
		"type": "object", "required": []string{"name"}, "additionalProperties": false,
		"properties": object{
			"name":      object{"type": "string", "minLength": 1, "description": "Name of the variable."},
			"value":     object{"type": "string", "description": "Its value."},
			"valueFrom": object{"type": "object", "description": "Where its value comes from, such as {secretKeyRef: {name: NAME, key: KEY}}."},
		},
	}),
	"extraVolumes":      arrayOf(object{"type": "object", "required": []string{"name"}}),
	"extraVolumeMounts": arrayOf(object{"type": "object", "required": []string{"name", "mountPath"}}),
	"extraManifests":    arrayOf(object{"type": "object", "required": []string{"apiVersion", "kind", "metadata"}}),
	"topologySpread":    arrayOf(object{"type": "object", "required": []string{"topologyKey", "maxSkew", "whenUnsatisfiable"}}),

	"log.format":                         oneOf("json", "text"),
	"log.level":                          oneOf("debug", "info", "warn", "error"),
	"metrics.serviceMonitor.interval":    textSchema(`^\d+(s|m)$`),
	"podDisruptionBudget.maxUnavailable": {"type": []string{"integer", "string"}, "minimum": 0, "pattern": `^\d+%$`},

	"service.type":                     oneOf("ClusterIP", "NodePort", "LoadBalancer"),
	"service.externalTrafficPolicy":    oneOf("Cluster", "Local"),
	"service.loadBalancerSourceRanges": arrayOf(textSchema(`^[0-9a-fA-F.:]+/\d+$`)),
	"port":                             {"minimum": 1, "maximum": 65535},
	"httpPort":                         {"minimum": 1, "maximum": 65535},
	"httpsPort":                        {"minimum": 1, "maximum": 65535},
	"networkPolicy.from":               arrayOf(object{"type": "object"}),
	"networkPolicy.apiFrom":            arrayOf(object{"type": "object"}),
	"networkPolicy.metricsFrom":        arrayOf(object{"type": "object"}),
	"networkPolicy.restateFrom":        {"items": object{"type": "object"}, "minItems": 1}, // an empty list lets everybody connect
	"networkPolicy.routesFrom":         arrayOf(object{"type": "object"}),
	"networkPolicy.egress":             arrayOf(object{"type": "object"}),

	"database.dsn.secret":  textSchema(nameOfObject),
	"keyset.secret":        textSchema(nameOfObject),
	"domain":               textSchema(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`),
	"restate.ingress":      textSchema(url),
	"restate.admin":        textSchema(url),
	"restate.identityKeys": arrayOf(textSchema(`^publickeyv1_\w+$`)),
	"backup.recipients":    arrayOf(textSchema(`^age1[a-z0-9]+$`)),
	"backup.schedule":      textSchema(`^(@\w+|\S+( \S+){4})$`),
	"backup.keep":          atLeast(0),

	"backup.activeDeadlineSeconds": atLeast(1),

	"server":                     textSchema(url),
	"pools":                      arrayOf(object{"type": "object", "required": []string{"name", "nodeSelector"}}),
	"gatewayAPI.gateway":         textSchema(orNone + `^[-a-z0-9]+/[-.a-z0-9]+(:[-.a-z0-9]+)?$`),
	"gatewayAPI.routesNamespace": textSchema(nameOfObject),
	"agent.url":                  textSchema(`^(https?://[^@\s/]+|unix:/\S+)$`),
	"drain.delaySeconds":         atLeast(0),
	"drain.timeoutSeconds":       atLeast(0),
	"autoscaling.minReplicas":    atLeast(1),
	"autoscaling.maxReplicas":    atLeast(1),
	"autoscaling.targetCPU":      atLeast(1),
	"dataSize":                   textSchema(`^\d+(Mi|Gi)$`),
}

// objectSchema returns the schema of an object with these properties, all of which are required.
func objectSchema(properties object) object {
	return object{"type": "object", "properties": properties, "required": slices.Sorted(maps.Keys(properties)), "additionalProperties": false}
}

// value is one value of a chart.
type value struct {
	path, about string
	// initial is the default, as YAML in one line. It is "" for values that contain other values.
	initial string
}

// chartSchema returns the JSON schema of the chart's values, and its values in the order of values.yaml.
func chartSchema(root string, c chart) (string, []value, error) {
	data, err := os.ReadFile(filepath.Join(root, chartsDir, c.name, "values.yaml"))
	if err != nil {
		return "", nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return "", nil, fmt.Errorf("%s: %w", c.name, err)
	}
	var values []value
	properties, err := schemaOf(doc.Content[0], "", &values)
	if err != nil {
		return "", nil, fmt.Errorf("%s/values.yaml: %w", c.name, err)
	}
	flags, err := c.flagSchemas(root)
	if err != nil {
		return "", nil, err
	}
	all := properties["flags"].(object) //nolint:forcetypeassert // made above
	all["properties"], all["additionalProperties"] = flags, false
	// Helm adds global to the values of a chart that another chart depends on.
	properties["global"] = object{"type": "object", "description": "Values that charts share with charts that they depend on. It is not used."}
	var out bytes.Buffer
	encode := json.NewEncoder(&out)
	encode.SetEscapeHTML(false)
	encode.SetIndent("", "  ")
	err = encode.Encode(object{
		"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart " + c.name,
		"$comment": "Generated by apps/windlass/internal/docgen from values.yaml and the program's flags.",
		"type":     "object", "properties": properties, "additionalProperties": false,
	})
	return out.String(), values, err
}

// schemaOf returns the schemas of the values of a mapping.
func schemaOf(mapping *yaml.Node, path string, values *[]value) (object, error) {
	out := object{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, node := mapping.Content[i], mapping.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		comment := key.HeadComment
		// The comment of the file stands above the comment of the first value.
		if j := strings.LastIndex(comment, "\n\n"); j >= 0 {
			comment = comment[j+2:]
		}
		var lines []string
		for line := range strings.Lines(comment) {
			lines = append(lines, strings.TrimSpace(strings.TrimPrefix(line, "#")))
		}
		about := strings.Join(lines, " ")
		if about == "" {
			return nil, fmt.Errorf("%s has no comment above it", at)
		}
		one, err := schemaOfValue(node, at, about, values)
		if err != nil {
			return nil, err
		}
		one["description"] = about
		constrained, ok := constraints[at]
		if !ok {
			constrained = constraints[key.Value]
		}
		maps.Copy(one, constrained)
		out[key.Value] = one
	}
	return out, nil
}

func schemaOfValue(node *yaml.Node, at, about string, values *[]value) (object, error) {
	// A mapping of Kubernetes has no comments in it.
	if node.Kind == yaml.MappingNode && len(node.Content) > 0 && node.Content[0].HeadComment != "" {
		*values = append(*values, value{path: at, about: about})
		properties, err := schemaOf(node, at, values)
		return object{"type": "object", "properties": properties, "additionalProperties": false}, err
	}
	var initial any
	if err := node.Decode(&initial); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	text, err := json.Marshal(initial)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	*values = append(*values, value{path: at, about: about, initial: string(text)})
	switch initial.(type) {
	case string:
		return object{"type": "string"}, nil
	case bool:
		return object{"type": "boolean"}, nil
	case int:
		return object{"type": "integer"}, nil
	case []any:
		return object{"type": "array"}, nil
	case map[string]any:
		return object{"type": "object"}, nil
	}
	return nil, fmt.Errorf("%s: its default %s has no type: use a text, a number, true or false, a list or a map", at, text)
}

var variable = regexp.MustCompile(`WINDLASS_\w+`)

// flagSchemas returns the schemas of the flags that the value "flags" accepts: the flags that the templates do not set and
// that are not withheld.
func (c chart) flagSchemas(root string) (object, error) {
	files, err := filepath.Glob(filepath.Join(root, chartsDir, c.name, "templates", "*"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no templates", c.name))
	}
	set := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, name := range variable.FindAllString(string(text), -1) {
			set[name] = true
		}
	}
	unknown := maps.Clone(set)
	app, err := c.model()
	if err != nil {
		return nil, err
	}
	all := app.Flags
	for _, child := range app.Children {
		if child.Name == c.command {
			all = append(slices.Clone(all), child.Flags...)
		}
	}
	for _, node := range append(app.Leaves(false), app.Node) {
		for _, f := range node.Flags {
			for _, env := range f.Envs {
				delete(unknown, env)
			}
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("%s sets variables that belong to no flag of its program, so the program ignores them: %v", c.name, slices.Sorted(maps.Keys(unknown)))
	}
	out, known := object{}, map[string]bool{}
	for _, f := range all {
		known[f.Name] = true
		if f.Hidden || f.Name == "help" || f.Name == "version" || slices.Contains(c.withheld, f.Name) || slices.ContainsFunc(f.Envs, func(env string) bool { return set[env] }) {
			continue
		}
		out[f.Name] = schemaOfFlag(f)
	}
	for _, name := range c.withheld {
		if !known[name] {
			return nil, fmt.Errorf("%s withholds --%s, which is no flag", c.name, name)
		}
	}
	return out, nil
}

func schemaOfFlag(f *kong.Flag) object {
	about := f.Help
	if f.Default != "" {
		about = strings.TrimSuffix(about, ".") + ". Default: " + f.Default + "."
	}
	out := object{"description": about, "type": "string"}
	switch {
	case f.IsBool():
		out["type"] = "boolean"
	case f.Enum != "":
		out["enum"] = strings.Split(f.Enum, ",")
	case f.Target.Type() == reflect.TypeFor[time.Duration]():
		out["pattern"] = durationPattern
	case f.Target.CanInt():
		out["type"] = "integer"
	}
	if strings.HasSuffix(f.Name, "-url") || strings.HasSuffix(f.Name, "-endpoint") {
		// A password in a URL is a secret. Such a URL comes from a Secret, through the value "env".
		out["pattern"] = `^[^@]*$`
	}
	return out
}

// writeSchemas writes values.schema.json of each chart into a copy of the charts' folder.
func writeSchemas(root, folder string) error {
	for _, c := range charts {
		text, _, err := chartSchema(root, c)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, c.name, "values.schema.json"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// chartsPage is the reference of the charts' values.
func chartsPage(src *source) (string, error) {
	var out strings.Builder
	out.WriteString(generated + "# Values of the Helm charts\n\n" +
		"A chart refuses values that it does not know. The value `flags` takes the [flags of the program](flags.md) that no other value sets. " +
		"[The guide](../guides/install.md) installs Windlass with the charts.\n")
	for _, c := range charts {
		_, values, err := chartSchema(src.root, c)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "\n## %s\n\n", c.name)
		t := newTable("value", "default", "meaning")
		for _, v := range values {
			t.addRow(asCode(v.path), asCode(v.initial), escapeProse(v.about))
		}
		out.WriteString(t.String())
	}
	return out.String(), nil
}

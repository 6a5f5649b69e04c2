package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var secretVersion = regexp.MustCompile(`^(overrides\[\d+\]\.)?secrets\[\d+\]\.version$`)

// diffSpecs returns the differences between the live spec and the file's, one line
// per field. A field that the file does not mention is shown only if leaving it out
// removes it. Other fields keep their live values or take their defaults.
func diffSpecs(live, file *windlassv1.DeploymentSpec) ([]string, error) {
	before, err := flattenSpec(live)
	if err != nil {
		return nil, err
	}
	after, err := flattenSpec(file)
	if err != nil {
		return nil, err
	}
	var lines []string
	for key, now := range after {
		was, ok := before[key]
		switch {
		case !ok:
			lines = append(lines, fmt.Sprintf("+ %s: %s", key, now))
		case was != now:
			lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", key, was, now))
		}
	}
	for key, was := range before {
		if _, ok := after[key]; ok {
			continue
		}
		// The file has no versions of secrets, because the control plane sets them.
		if isRemoved(key, was) && !secretVersion.MatchString(key) {
			lines = append(lines, fmt.Sprintf("- %s: %s", key, was))
		}
	}
	sort.Slice(lines, func(i, j int) bool { return lines[i][2:] < lines[j][2:] })
	return lines, nil
}

// changesOf returns the differences between the live spec and the file's, one line per field. With serve they
// come from the plan, because only the control plane knows what a preset makes of a file.
func changesOf(live, file *windlassv1.DeploymentSpec, plan *windlassv1.PlanDeployResponse) ([]string, error) {
	if live.GetServe() == nil && file.GetServe() == nil {
		changes, err := diffSpecs(live, file)
		return withSizes(changes, plan), err
	}
	var lines []string
	for _, c := range plan.GetChanges() {
		if c.GetPath() != "rollout" && !strings.HasPrefix(c.GetPath(), "rollout.") {
			lines = append(lines, changeLine(c))
		}
	}
	return lines, nil
}

// withSizes replaces the changes of replicas by the plan's. Scaling does not change the spec, so only the plan knows
// the replicas that regions have.
func withSizes(changes []string, plan *windlassv1.PlanDeployResponse) []string {
	changes = slices.DeleteFunc(changes, func(line string) bool {
		path, _, _ := strings.Cut(line[2:], ": ")
		return isSize(path)
	})
	for _, c := range plan.GetChanges() {
		if isSize(c.GetPath()) {
			changes = append(changes, changeLine(c))
		}
	}
	sort.Slice(changes, func(i, j int) bool { return changes[i][2:] < changes[j][2:] })
	return changes
}

// aboutOnly reports whether the changed fields only describe a version. Such changes create no version.
func aboutOnly(changes []string) bool {
	return !slices.ContainsFunc(pathsOf(changes), func(path string) bool {
		return path != "message" && path != "sourceCommit" && path != "versionLabel"
	})
}

// makesVersion reports whether a deploy creates a version. It returns true for the plan of a refused deploy, which
// does not say whether a version would be created.
func makesVersion(p *windlassv1.PlanDeployResponse) bool {
	switch p.GetOutcome() {
	case windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED, windlassv1.PlanDeployResponse_OUTCOME_TAKEN_BACK, windlassv1.PlanDeployResponse_OUTCOME_SCALED:
		return false
	case windlassv1.PlanDeployResponse_OUTCOME_UNSPECIFIED, windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT:
	}
	return true
}

// pathsOf returns the fields of changes, which are lines of diffSpecs or changeLine.
func pathsOf(changes []string) (paths []string) {
	for _, line := range changes {
		path, _, _ := strings.Cut(line[2:], ": ")
		paths = append(paths, path)
	}
	return paths
}

// isSize reports whether the field is a number of replicas, of all regions or of an override.
func isSize(path string) bool { return path == "replicas" || strings.HasSuffix(path, "].replicas") }

// withoutDefault are the prefixes of fields without a default. Leaving them out of a file
// removes them.
var withoutDefault = []string{
	"args[", "command[", "secrets[", "regions[", "overrides[", "resources.gpu.", "resources.shmMib", "resources.ephemeralStorageMib",
	"drainDelay", "modelCache.", "kubernetes.", "routing.",
}

// isRemoved reports whether leaving the field out of the file removes it. Default values are not removed.
func isRemoved(key, was string) bool {
	if was == "ZONE_SPREAD_PREFERRED" || was == "RETENTION_DELETE" {
		return false
	}
	return slices.ContainsFunc(withoutDefault, func(part string) bool { return strings.HasPrefix(key, part) })
}

// flattenSpec returns the values of a spec's fields by path.
func flattenSpec(spec *windlassv1.DeploymentSpec) (map[string]string, error) {
	data, err := protojson.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	var root any
	if err := json.Unmarshal(data, &root); err != nil {
		return nil, fmt.Errorf("decode spec: %w", err)
	}
	out := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, child := range v {
				walk(joinPath(path, k), child)
			}
		case []any:
			for i, child := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), child)
			}
		default:
			out[path] = fmt.Sprint(v)
		}
	}
	walk("", root)
	return out, nil
}

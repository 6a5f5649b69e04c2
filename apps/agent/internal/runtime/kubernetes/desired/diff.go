package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// difference is one of our fields with another value than the wanted one.
type difference struct {
	path        string
	want, found string
}

func (d difference) String() string {
	return fmt.Sprintf("%s: want %s, found %s", d.path, d.want, d.found)
}

// differencesOf returns the fields of config that have another value in the object. All other fields
// of the object belong to other clients or have defaults.
func differencesOf(config any, live render.Object) ([]difference, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", config, err)
	}
	var want map[string]any
	if err := json.Unmarshal(data, &want); err != nil {
		return nil, fmt.Errorf("decode %T: %w", config, err)
	}
	found, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(live)
	if err != nil {
		return nil, fmt.Errorf("decode %T: %w", live, err)
	}
	// A typed object has no kind and apiVersion, and the status belongs to a subresource.
	delete(want, "kind")
	delete(want, "apiVersion")
	delete(want, "status")
	var out []difference
	compare("", want, found, &out)
	return out, nil
}

func compare(path string, want, found any, out *[]difference) {
	switch w := want.(type) {
	case map[string]any:
		f, ok := found.(map[string]any)
		if !ok {
			if found != nil || !isEmpty(w) {
				*out = append(*out, difference{path, showValue(want), showValue(found)})
			}
			return
		}
		for _, k := range slices.Sorted(maps.Keys(w)) {
			compare(joinPath(path, k), w[k], f[k], out)
		}
	case []any:
		f, ok := found.([]any)
		if !ok {
			if found != nil || len(w) > 0 {
				*out = append(*out, difference{path, showValue(want), showValue(found)})
			}
			return
		}
		compareLists(path, w, f, out)
	default:
		if !sameValue(want, found) {
			*out = append(*out, difference{path, showValue(want), showValue(found)})
		}
	}
}

// keyOf has, by the name of a list, the field that identifies an item, as in the API's schema. Other
// clients may add items to these lists. All other lists are wholly ours.
var keyOf = map[string]string{
	"containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
	"imagePullSecrets": "name", "volumeMounts": "mountPath", "ownerReferences": "uid",
	"topologySpreadConstraints": "topologyKey",
}

func compareLists(path string, want, found []any, out *[]difference) {
	if key, ok := keyOf[path[strings.LastIndexByte(path, '.')+1:]]; ok {
		byKey := map[any]any{}
		for _, f := range found {
			if m, ok := f.(map[string]any); ok {
				byKey[m[key]] = f
			}
		}
		for _, w := range want {
			m, ok := w.(map[string]any)
			if !ok {
				continue
			}
			compare(fmt.Sprintf("%s[%v]", path, m[key]), w, byKey[m[key]], out)
		}
		return
	}
	if len(want) != len(found) {
		*out = append(*out, difference{path, showValue(want), showValue(found)})
		return
	}
	for i := range want {
		compare(fmt.Sprintf("%s[%d]", path, i), want[i], found[i], out)
	}
}

// sameValue reports whether two leaf values are equal. The server normalizes quantities, and leaves out
// zero values.
func sameValue(want, found any) bool {
	switch w := want.(type) {
	case nil:
		return found == nil
	case bool:
		f, ok := found.(bool)
		return ok && w == f || found == nil && !w
	case float64:
		switch f := found.(type) {
		case int64:
			return w == float64(f)
		case float64:
			return w == f
		case nil:
			return w == 0
		}
		return false
	case string:
		f, ok := found.(string)
		if !ok {
			return found == nil && w == ""
		}
		if w == f {
			return true
		}
		a, errA := quantity.ParseQuantity(w)
		b, errB := quantity.ParseQuantity(f)
		return errA == nil && errB == nil && a.Cmp(b) == 0
	}
	return false
}

func isEmpty(m map[string]any) bool {
	for _, v := range m {
		switch v := v.(type) {
		case map[string]any:
			if !isEmpty(v) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func joinPath(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// maxShown is the maximum length in bytes of one value in an event.
const maxShown = 120

func showValue(v any) string {
	if v == nil {
		return "nothing"
	}
	data, err := json.Marshal(v)
	if err != nil {
		return "something"
	}
	if s := string(data); len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(string(data[:maxShown]), "") + "..."
}

// maxDifferences is the maximum number of differences in an event. An event may have 1024 bytes.
const maxDifferences = 5

// Summary returns the differences as one line. It leaves out the values of a Secret.
func Summary(k render.Kind, all []difference) string {
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteString("; ")
		}
		if i == maxDifferences {
			_, _ = fmt.Fprintf(&b, "and %d more", len(all)-i)
			break
		}
		if k == render.KindSecret {
			b.WriteString(d.path)
			continue
		}
		b.WriteString(d.String())
	}
	if b.Len() > 900 {
		return strings.ToValidUTF8(b.String()[:900], "") + "..."
	}
	return b.String()
}

package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// gangPack is how a gang is packed.
type gangPack struct {
	word, label string
	required    bool
}

// packOf returns how the gangs of a spec are packed, or nil if they are not.
func (r families) packOf(s *windlassv1.DeploymentSpec) (*gangPack, error) {
	word, required := runtime.Packs(s)
	if word == "" {
		return nil, nil
	}
	label, ok := r.render.Topology[word]
	if !ok {
		return nil, &runtime.Rejection{
			Code: runtime.ReasonUnsupported,
			Message: fmt.Sprintf("topology.pack: the region has no word %q, but %s: use one of these, or leave topology out. --topology of the region's agent adds words",
				word, cmp.Or(strings.Join(slices.Sorted(maps.Keys(r.render.Topology)), ", "), "none")),
		}
	}
	return &gangPack{word, label, required}, nil
}

// inOne returns the part of a message that says where all pods must be.
func (p *gangPack) inOne() string {
	if p == nil || !p.required {
		return ""
	}
	return " in one " + p.word
}

// nodesByDomain returns the names of the nodes by the value of a label. Nodes without a value are left out.
func nodesByDomain(nodes []*corev1.Node, label string) map[string][]string {
	out := map[string][]string{}
	for _, n := range nodes {
		if domain := n.Labels[label]; domain != "" {
			out[domain] = append(out[domain], n.Name)
		}
	}
	return out
}

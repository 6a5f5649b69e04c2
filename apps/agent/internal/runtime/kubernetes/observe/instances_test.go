package observe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fixture is a file of testdata: a pod as an API server returned it, its events, and the expected
// instance. The file's first line describes the case.
type fixture struct {
	Now          time.Time      `json:"now"`
	TemplateHash string         `json:"templateHash"`
	Pod          *corev1.Pod    `json:"pod"`
	Events       []corev1.Event `json:"events"`
	Nodes        []corev1.Node  `json:"nodes"`
	Want         expected       `json:"want"`
}

type expected struct {
	Status    string    `json:"status"`
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	Doomed    bool      `json:"doomed"`
	Restarts  int       `json:"restarts"`
	Address   string    `json:"address"`
	GPUs      []string  `json:"gpus"`
	StartedAt time.Time `json:"startedAt"`
	ReadyAt   time.Time `json:"readyAt"`
}

func (s *fixture) input() Input {
	j := &Journal{}
	for i := range s.Events {
		j.Add(&s.Events[i])
	}
	return Input{Now: s.Now, TemplateHash: s.TemplateHash, Pods: []*corev1.Pod{s.Pod}, Journal: j, Nodes: s.node, Secrets: redact.New()}
}

func (s *fixture) node(name string) *corev1.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

func fixtures(t testing.TB) map[string]*fixture {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]*fixture{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		s := &fixture{}
		require.NoError(t, yaml.UnmarshalStrict(b, s), f)
		all[strings.TrimSuffix(filepath.Base(f), ".yaml")] = s
	}
	return all
}

func TestInstances_EachPodStateHasItsReason(t *testing.T) {
	for name, s := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			var m Memory
			all := m.Instances(s.input())
			require.Len(t, all, 1)
			i := all[0]
			require.Equal(t, s.Want, expected{
				Status: strings.TrimPrefix(i.Status.String(), "INSTANCE_STATUS_"), Reason: i.Reason, Message: i.Message,
				Doomed: i.Doomed, Restarts: i.Restarts, Address: i.Address, GPUs: i.GPUs, StartedAt: i.StartedAt, ReadyAt: i.ReadyAt,
			})
			require.Equal(t, "ins_7c1f3b1e-52a4-4c7e-9d0e-0a7d6d0f6a11", i.ID)
			require.Equal(t, "windlass-shop-production-1a2b3c/chat-v3-abcde-5d9c7-x2x8k", i.RuntimeName)
			require.Equal(t, "main", i.Role)
			require.Equal(t, "new", i.TemplateHash)

			require.Equal(t, all, m.Instances(s.input()), "a second call returns the same instances")
		})
	}
}

func TestInstances_WithoutEventsHaveTheSameStatus(t *testing.T) {
	for name, s := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			in := s.input()
			in.Journal = nil
			var m Memory
			require.Equal(t, windlassv1.InstanceStatus_value["INSTANCE_STATUS_"+s.Want.Status], int32(m.Instances(in)[0].Status))
		})
	}
}

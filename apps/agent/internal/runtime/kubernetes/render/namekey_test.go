package render

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Only a reader with the key can find out from an object which value of a secret it was made with.
func TestNameKey(t *testing.T) {
	derived := func(key, value string) []string {
		cfg, a := config(), minimal()
		if key != "" {
			cfg.NameKey = []byte(key)
		}
		a.Deployment.Spec.Secrets = []*windlassv1.SecretReference{{EnvName: "PIN", Secret: "pin"}}
		a.Secrets = map[string]string{"PIN": value}
		o, err := Render(cfg, a)
		require.NoError(t, err)
		return []string{*o.Secrets[1].Name, o.Workload.Annotations[AnnotationSecretHash], o.Workload.Spec.Template.Annotations[AnnotationSecretHash]}
	}
	require.Equal(t, derived("key of this cluster", "1234"), derived("key of this cluster", "1234"))
	for i, of := range derived("key of this cluster", "1234") {
		require.NotEqual(t, of, derived("key of this cluster", "1235")[i])
		require.NotEqual(t, of, derived("another key", "1234")[i])
		require.NotEqual(t, of, derived("", "1234")[i])
	}
}

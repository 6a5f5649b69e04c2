package render

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

const (
	maxLabel = validation.DNS1123LabelMaxLength
	// maxWorkload leaves room for what controllers append to the name of a workload:
	// a dash and ten letters for a ReplicaSet, a dash and five for a pod. The API
	// server would cut longer ones, and what is cut off is what tells them apart.
	maxWorkload = maxLabel - 1 - 10 - 1 - 5
	// shortHash is 25 bits: it tells apart what has one name otherwise, within one
	// namespace; environmentHash is 30, within one cluster.
	shortHash       = 5
	environmentHash = 6
)

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// hash is n letters and digits that stand for s.
func hash(s string, n int) string {
	sum := sha256.Sum256([]byte(s))
	return lower.EncodeToString(sum[:])[:n]
}

// cut shortens a name to at most n bytes, and to one that does not end in a dash.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:max(n, 0)]
	}
	return strings.TrimRight(s, "-")
}

// NamespaceName is the namespace of an environment: people find it by the names of
// project and environment, and its hash keeps two of the same names apart, and two
// regions that share a cluster.
func (c Config) NamespaceName(project, environment, environmentID string) string {
	if c.Namespace != "" {
		return c.Namespace
	}
	prefix := c.NamespacePrefix
	if prefix == "" {
		prefix = DefaultNamespacePrefix
	}
	room := maxLabel - len(prefix) - environmentHash - 2
	// What one does not need the other may have.
	environment = cut(environment, max(room/2, room-len(project)))
	project = cut(project, room-len(environment))
	parts := slices.DeleteFunc([]string{project, environment}, func(s string) bool { return s == "" })
	return prefix + strings.Join(append(parts, hash(c.Region+"/"+environmentID, environmentHash)), "-")
}

// WorkloadName is the name of the workload of an assignment: what people call it,
// and enough of a hash of its key to be unlike that of any other.
func WorkloadName(a runtime.Assignment) string {
	tail := "-" + hash(workloadKey(a), shortHash)
	if a.WorkloadVersion > 0 {
		tail = fmt.Sprintf("-v%d%s", a.WorkloadVersion, tail)
	}
	return cut(a.Deployment.GetAppName(), maxWorkload-len(tail)) + tail
}

// workloadKey is as runtime.Assignment has it; without one, a deployment has a
// workload of its own.
func workloadKey(a runtime.Assignment) string {
	if a.WorkloadKey != "" {
		return a.WorkloadKey
	}
	return a.Deployment.GetId()
}

// ClaimName is the volume for the weights of an app, the same for all its versions.
func ClaimName(appName, appID string) string {
	tail := "-cache-" + hash(appID, shortHash)
	return cut(appName, maxLabel-len(tail)) + tail
}

func variablesName(workload, contents string) string { return workload + "-env-" + contents }

func identityName(workload string) string { return workload + "-identity" }

// pullName does not depend on the value, so that a registry's new password reaches
// the pods that are there.
func pullName(workload, secret string) string {
	return workload + "-pull-" + hash(secret, shortHash)
}

// portName is what a port of a pod is called: Kubernetes takes 15 letters, digits
// and single dashes.
func portName(name string) string {
	if len(validation.IsValidPortName(name)) == 0 {
		return name
	}
	short := name
	for strings.Contains(short, "--") {
		short = strings.ReplaceAll(short, "--", "-")
	}
	return cut(short, 9) + "-" + hash(name, shortHash)
}

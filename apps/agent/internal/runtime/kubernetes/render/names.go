package render

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

const (
	maxLabel = validation.DNS1123LabelMaxLength
	// maxWorkload leaves room for the suffixes that controllers append to the name of a workload: a
	// dash and ten letters for a ReplicaSet, and a dash and five letters for a pod. The API server
	// would cut a longer name, and remove the end that makes it unique.
	maxWorkload = maxLabel - 1 - 10 - 1 - 5
	// shortHash is the length of a hash with 25 bits, which makes names unique in a namespace.
	// environmentHash is the length of a hash with 30 bits, which makes names unique in a cluster.
	shortHash       = 5
	environmentHash = 6
)

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// hash returns n letters and digits of a hash of s.
func hash(s string, n int) string {
	sum := sha256.Sum256([]byte(s))
	return lower.EncodeToString(sum[:])[:n]
}

// cutName shortens a name to at most n bytes, without a dash at its end.
func cutName(s string, n int) string {
	if len(s) > n {
		s = s[:max(n, 0)]
	}
	return strings.TrimRight(s, "-")
}

// NamespaceName returns the name of an environment's namespace. It contains the names of project
// and environment, for people. It also contains a hash that makes it unique among environments and
// among regions that share a cluster.
func (c Config) NamespaceName(project, environment, environmentID string) string {
	if c.Namespace != "" {
		return c.Namespace
	}
	prefix := c.NamespacePrefix
	if prefix == "" {
		prefix = DefaultNamespacePrefix
	}
	room := maxLabel - len(prefix) - environmentHash - 2
	// If one name is short, the other may be longer.
	environment = cutName(environment, max(room/2, room-len(project)))
	project = cutName(project, room-len(environment))
	parts := slices.DeleteFunc([]string{project, environment}, func(s string) bool { return s == "" })
	return prefix + strings.Join(append(parts, hash(c.Region+"/"+environmentID, environmentHash)), "-")
}

// WorkloadName returns the name of an assignment's workload: the app's name, the version,
// and a hash of the workload's key that makes it unique.
func WorkloadName(a runtime.Assignment) string {
	if a.Unit != nil {
		return unitName(a)
	}
	tail := "-" + hash(workloadKey(a), shortHash)
	if a.WorkloadVersion > 0 {
		tail = fmt.Sprintf("-v%d%s", a.WorkloadVersion, tail)
	}
	return cutName(a.Deployment.GetAppName(), maxWorkload-len(tail)) + tail
}

// unitName returns the name of the workload of one instance: the app's name, the version, the role,
// the group, the slot and the rank. A hash makes it unique even if names are cut.
func unitName(a runtime.Assignment) string {
	at := fmt.Sprintf("-%d-%d", a.Unit.Group, a.Unit.Slot)
	if a.Unit.Hosts > 1 {
		at += fmt.Sprintf("-%d", a.Unit.Rank)
	}
	return placeName(a, at+"-"+hash(workloadKey(a), shortHash))
}

// RanksName returns the name of the Service with the addresses of all ranks of an instance of several hosts.
func RanksName(a runtime.Assignment) string {
	u := a.Unit
	return placeName(a, fmt.Sprintf("-%d-%d-ranks-%s", u.Group, u.Slot, hash(UnitKey(FamilyKey(a), u.Role, u.Group, u.Slot), shortHash)))
}

// PodGroupName returns the name of the PodGroup of a gang: an instance of several hosts, or a group, whose role is
// empty. It contains the number of pods, because the fields of a PodGroup cannot change.
func PodGroupName(a runtime.Assignment, role string, group, slot, pods int) string {
	tail := fmt.Sprintf("-%d-%d-gang%d-%s", group, slot, pods, hash(UnitKey(FamilyKey(a), role, group, slot), shortHash))
	a.Unit = &runtime.Unit{Role: cmp.Or(role, "group")}
	return placeName(a, tail)
}

// PodGroupLabels returns the labels of the PodGroup of a gang; see PodGroupName.
func (c Config) PodGroupLabels(a runtime.Assignment, role string, group, slot int) map[string]string {
	l := map[string]string{LabelManagedBy: ManagedBy, LabelRegion: c.Region, LabelUnitOf: FamilyKey(a), LabelGroup: strconv.Itoa(group)}
	set(l, LabelApp, a.Deployment.GetAppId())
	if role != "" {
		l[LabelComponent], l[LabelSlot] = role, strconv.Itoa(slot)
	}
	return l
}

// RankHost returns the host name of the pod of a rank. It differs for each template and each epoch,
// so a rank never finds the leader of an earlier template or epoch. All ranks have the template and
// the epoch of the assignment.
func RankHost(a runtime.Assignment, rank int) string {
	return fmt.Sprintf("rank-%d-%s", rank, hash(fmt.Sprintf("%s/%d", a.TemplateHash, a.Unit.Epoch), environmentHash))
}

// slotHost returns the host name of the pod in a stable slot.
func slotHost(role string, group, slot int) string {
	tail := fmt.Sprintf("-%d-%d", group, slot)
	return cutName(role, maxLabel-len(tail)) + tail
}

// placeName returns a name that ends with tail and contains the app's name, the version and the
// role.
func placeName(a runtime.Assignment, tail string) string {
	u := a.Unit
	version := ""
	if a.WorkloadVersion > 0 {
		version = fmt.Sprintf("-v%d", a.WorkloadVersion)
	}
	room := maxWorkload - len(tail) - len(version) - 1
	// If one name is short, the other may be longer.
	app := cutName(a.Deployment.GetAppName(), max(room/2, room-len(u.Role)))
	return app + version + "-" + cutName(u.Role, room-len(app)) + tail
}

// RankKey returns the workload key of one rank of an instance of several hosts.
func RankKey(parent, role string, group, slot, rank int) string {
	return placeKey(parent, role, fmt.Sprintf(".%d.%d.%d", group, slot, rank))
}

// RankOf returns the rank that a workload key names. ok is false if it names an instance of one host.
func RankOf(key string) (rank int, ok bool) {
	m := unitTail.FindStringSubmatch(key)
	if len(m) < 3 || m[2] == "" {
		return 0, false
	}
	rank, err := strconv.Atoi(m[2])
	return rank, err == nil
}

// UnitKey returns the workload key of one instance of a deployment with several roles. parent is
// the deployment's key.
func UnitKey(parent, role string, group, slot int) string {
	return placeKey(parent, role, fmt.Sprintf(".%d.%d", group, slot))
}

// placeKey returns parent with the place and the role added. A parent that is too long for a label
// is replaced by its hash.
func placeKey(parent, role, place string) string {
	tail := place + "." + hash(role, environmentHash)
	if len(parent)+len(tail) > maxLabel {
		parent = hash(parent, contentHash)
	}
	return parent + tail
}

var unitTail = regexp.MustCompile(`^(.+?)\.\d+\.\d+(?:\.(\d+))?\.[a-z2-7]{6}$`)

// ParentKey returns the parent in a key of UnitKey or RankKey: the deployment's key, or the hash that
// replaces it. It returns any other key unchanged.
func ParentKey(key string) string {
	if m := unitTail.FindStringSubmatch(key); m != nil {
		return m[1]
	}
	return key
}

// PeersName returns the name of the Secret with the peers file of a group.
func PeersName(a runtime.Assignment, group int) string {
	tail := fmt.Sprintf("-%d-peers-%s", group, hash(fmt.Sprint(FamilyKey(a), "/", group), shortHash))
	return cutName(a.Deployment.GetAppName(), maxLabel-len(tail)) + tail
}

// FamilyBudgetName returns the name of the disruption budget of a deployment with several roles.
func FamilyBudgetName(a runtime.Assignment) string {
	tail := "-all-" + hash(FamilyKey(a), shortHash)
	return cutName(a.Deployment.GetAppName(), maxLabel-len(tail)) + tail
}

// workloadKey returns the key of the assignment's workload. In a deployment with several roles,
// each instance has its own key. So has each rank of an instance of several hosts.
func workloadKey(a runtime.Assignment) string {
	if u := a.Unit; u != nil && u.Hosts > 1 {
		return RankKey(FamilyKey(a), u.Role, u.Group, u.Slot, u.Rank)
	} else if u != nil {
		return UnitKey(FamilyKey(a), u.Role, u.Group, u.Slot)
	}
	return FamilyKey(a)
}

// FamilyKey returns the assignment's workload key. If it has none, the key is the deployment's id,
// so that the deployment has its own workload.
func FamilyKey(a runtime.Assignment) string {
	if a.WorkloadKey != "" {
		return a.WorkloadKey
	}
	return a.Deployment.GetId()
}

// ClaimName returns the name of the app's claim, which all its versions share.
func ClaimName(appName, appID string) string {
	tail := "-cache-" + hash(appID, shortHash)
	return cutName(appName, maxLabel-len(tail)) + tail
}

func variablesName(workload, contents string) string { return workload + "-env-" + contents }

func loaderName(workload string) string { return workload + "-loader" }

func identityName(workload string) string { return workload + "-identity" }

// pullName returns the name of a pull Secret. It does not depend on the value, so existing pods get
// a registry's new password.
func pullName(workload, secret string) string {
	return workload + "-pull-" + hash(secret, shortHash)
}

// portName returns a name for a port of a pod. Kubernetes accepts up to 15 letters, digits and
// single dashes.
func portName(name string) string {
	if len(validation.IsValidPortName(name)) == 0 {
		return name
	}
	short := name
	for strings.Contains(short, "--") {
		short = strings.ReplaceAll(short, "--", "-")
	}
	return cutName(short, 9) + "-" + hash(name, shortHash)
}

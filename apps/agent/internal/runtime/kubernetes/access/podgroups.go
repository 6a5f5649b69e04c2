package access

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	podGroupsAPI = "/apis/scheduling.k8s.io"
	podGroups    = "podgroups"
)

// podGroupVersions are the versions of PodGroup that the agent can write, the best first. They differ between minor
// versions of Kubernetes, but the fields that the agent sets are the same in all of them. In Kubernetes 1.36, it is
// v1alpha2, which needs the feature gates GenericWorkload and GangScheduling.
var podGroupVersions = []string{"v1beta1", "v1alpha3", "v1alpha2"}

// PodGroup is a PodGroup of scheduling.k8s.io: pods that name it get nodes only if MinCount of them do.
type PodGroup struct {
	Name, Namespace string
	Labels          map[string]string
	// Owners are the objects with the last of which Kubernetes removes the PodGroup.
	Owners   []metav1.OwnerReference
	MinCount int
}

// object returns the PodGroup as JSON of a version of the API.
func (g *PodGroup) object(version string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"apiVersion": "scheduling.k8s.io/" + version, "kind": "PodGroup",
		"metadata": map[string]any{"name": g.Name, "namespace": g.Namespace, "labels": g.Labels, "ownerReferences": g.Owners},
		"spec":     map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": g.MinCount}}},
	})
}

// PodGroupVersion returns the version of the API in which the cluster serves PodGroups, or "" if it serves none.
func (a *API) PodGroupVersion(ctx context.Context) (string, error) {
	group := &metav1.APIGroup{}
	if there, err := a.discover(ctx, podGroupsAPI, group); err != nil || !there {
		return "", err
	}
	for _, version := range podGroupVersions {
		served := slices.ContainsFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version })
		if !served {
			continue
		}
		list := &metav1.APIResourceList{}
		there, err := a.discover(ctx, podGroupsAPI+"/"+version, list)
		if err != nil {
			return "", err
		}
		if there && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == podGroups }) {
			return version, nil
		}
	}
	return "", nil
}

// discover reads a document of the API's discovery. It returns false if the cluster does not have it.
func (a *API) discover(ctx context.Context, path string, into any) (bool, error) {
	var body []byte
	err := a.Call(ctx, "get "+path, func(ctx context.Context) (err error) {
		body, err = a.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
		return foundError(err)
	})
	switch {
	case IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}

// MakePodGroup creates a PodGroup. It leaves an existing one as it is, because its fields cannot change.
func (a *API) MakePodGroup(ctx context.Context, version string, g *PodGroup) error {
	body, err := g.object(version)
	if err != nil {
		return fmt.Errorf("encode PodGroup %s/%s: %w", g.Namespace, g.Name, err)
	}
	return a.Call(ctx, fmt.Sprintf("create PodGroup %s/%s", g.Namespace, g.Name), func(ctx context.Context) error {
		_, err := a.CoreV1().RESTClient().Post().AbsPath(podGroupsAPI+"/"+version+"/namespaces/"+g.Namespace+"/"+podGroups).
			Param("fieldManager", FieldManager).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).DoRaw(ctx)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

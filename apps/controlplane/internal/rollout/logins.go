package rollout

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// logins are credentials by the place that they are for: "host" or "host/path".
type logins map[string]authn.AuthConfig

// loginKeychain reads Docker configurations. The first of two entries for a place counts.
func loginKeychain(configs []string) (authn.Keychain, error) {
	all := logins{}
	for _, c := range configs {
		var file struct {
			Auths map[string]authn.AuthConfig `json:"auths"`
		}
		// The error's text is left out, because it may quote the configuration.
		if json.Unmarshal([]byte(c), &file) != nil || file.Auths == nil {
			return nil, fmt.Errorf(`a secret with image_pull holds no Docker configuration such as {"auths": {"registry.example": {"auth": ...}}}`)
		}
		for place, auth := range file.Auths {
			if place = registryPlace(place); place != "" {
				if _, ok := all[place]; !ok {
					all[place] = auth
				}
			}
		}
	}
	return all, nil
}

// registryPlace returns the place of an entry's name as Docker and Kubernetes read it. The name may have a
// scheme, and the path of an old API or of repositories.
func registryPlace(s string) string {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = rest
	}
	s = strings.TrimSuffix(s, "/")
	// Only the first segment can be that of an API: a repository may be called v1, too.
	if host, path, ok := strings.Cut(s, "/"); ok {
		if api, rest, _ := strings.Cut(path, "/"); api == "v1" || api == "v2" {
			s = strings.TrimSuffix(host+"/"+rest, "/")
		}
	}
	if host, path, _ := strings.Cut(s, "/"); host == "docker.io" || host == "registry-1.docker.io" {
		s = strings.TrimSuffix("index.docker.io/"+path, "/")
	}
	return s
}

// Resolve implements authn.Keychain. Credentials are used only at their place. Of several that match, the one
// with the longest path is used.
func (l logins) Resolve(target authn.Resource) (authn.Authenticator, error) {
	for place := target.String(); ; {
		if auth, ok := l[place]; ok {
			return authn.FromConfig(auth), nil
		}
		cut := strings.LastIndexByte(place, '/')
		if cut < 0 {
			return authn.Anonymous, nil
		}
		place = place[:cut]
	}
}

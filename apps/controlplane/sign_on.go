package controlplane

import (
	"fmt"
	"net/url"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/sso"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// oidcFlags configure the issuer at which people sign in.
type oidcFlags struct {
	Issuer               string        `help:"URL of the OpenID Connect issuer at which people sign in. Default: none, and people use API keys." env:"WINDLASS_OIDC_ISSUER"`
	ClientID             string        `name:"client-id" help:"Id of the control plane's client at the issuer. Its redirect URLs are each of --oidc-origins with /ui/sso/callback." env:"WINDLASS_OIDC_CLIENT_ID"`
	ClientSecretFile     string        `help:"File with the client's secret. Read at each sign-in. Default: none, for a public client." type:"path" env:"WINDLASS_OIDC_CLIENT_SECRET_FILE"`
	ClientAuth           string        `help:"How the control plane sends the secret to the issuer: ${enum}." enum:"basic,post" default:"basic" env:"WINDLASS_OIDC_CLIENT_AUTH"`
	Scopes               []string      `help:"Scopes that a sign-in asks for, besides openid." default:"profile,email" env:"WINDLASS_OIDC_SCOPES"`
	GroupsClaim          string        `help:"Claim of the ID token that sign-in rules call groups. Members of objects are named with dots, as in realm_access.roles." default:"groups" env:"WINDLASS_OIDC_GROUPS_CLAIM"`
	Origins              []string      `help:"Origins, such as https://windlass.example.com, at which browsers reach the control plane. A sign-in returns only to these." env:"WINDLASS_OIDC_ORIGINS"`
	SessionMax           time.Duration `help:"How long a person stays signed in. The next sign-in reads the person's groups again." default:"12h" env:"WINDLASS_OIDC_SESSION_MAX"`
	certfile.RemoteFlags `embed:"" envprefix:"WINDLASS_OIDC_"`
}

// Validate implements kong's check.
func (f oidcFlags) Validate() error {
	for _, origin := range f.Origins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
			return fmt.Errorf("--oidc-origins: %q is not an origin: use https://HOST or https://HOST:PORT", origin)
		}
	}
	switch {
	case f.Issuer != "" && len(f.Origins) == 0:
		return fmt.Errorf("--oidc-issuer=%s: set --oidc-origins to the addresses at which browsers reach the control plane", f.Issuer)
	case f.SessionMax < 5*time.Minute:
		return fmt.Errorf("--oidc-session-max=%s: use at least 5m", f.SessionMax)
	}
	return nil
}

// federationFlags configure the issuers whose tokens services trade for tokens of the control plane.
type federationFlags struct {
	Issuers  []string      `help:"URLs of the issuers whose tokens services, such as jobs of a CI, may use. Sign-in rules of workspaces decide what a token may do." default:"https://token.actions.githubusercontent.com,https://gitlab.com" env:"WINDLASS_FEDERATION_ISSUERS"`
	Audience string        `help:"Audience that these tokens must have." default:"windlass" env:"WINDLASS_FEDERATION_AUDIENCE"`
	TTL      time.Duration `name:"ttl" help:"How long the token that a service gets works. It cannot be renewed." default:"1h" env:"WINDLASS_FEDERATION_TTL"`
}

// Validate implements kong's check.
func (f federationFlags) Validate() error {
	if f.TTL < time.Minute || f.TTL > 24*time.Hour {
		return fmt.Errorf("--federation-ttl=%s: use 1m to 24h", f.TTL)
	}
	return nil
}

// signOn is what a core needs for sign-ins of members.
type signOn struct {
	service                   *sso.Service
	origins                   []string
	sessionMax, federationTTL time.Duration
}

func (f serveFlags) signOn(files *certfile.Files) (signOn, error) {
	transport, err := f.OIDC.Transport("oidc-", files)
	if err != nil {
		return signOn{}, err
	}
	service, err := sso.New(sso.Config{
		Issuer: f.OIDC.Issuer, ClientID: f.OIDC.ClientID, SecretFile: f.OIDC.ClientSecretFile, SecretInBody: f.OIDC.ClientAuth == "post", Scopes: f.OIDC.Scopes, GroupsClaim: f.OIDC.GroupsClaim,
		FederationIssuers: f.Federation.Issuers, FederationAudience: f.Federation.Audience, Transport: transport,
	})
	if err != nil {
		return signOn{}, err
	}
	return signOn{service, f.OIDC.Origins, f.OIDC.SessionMax, f.Federation.TTL}, nil
}

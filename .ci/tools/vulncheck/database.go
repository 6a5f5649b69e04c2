package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// standardURL is the database that govulncheck reads by default.
	standardURL = "https://vuln.go.dev"
	// reachTimeout bounds the question whether a database answers. A network that drops packets gives no other answer.
	reachTimeout = 5 * time.Second
)

// database is one that can be read.
type database struct {
	url string
	// version describes how new it is. Empty: it does not say.
	version string
}

func (d database) String() string {
	if d.version == "" {
		return d.url
	}
	return d.url + " of " + d.version
}

// parse reads the URL of a database.
func parse(address string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(address, "/"))
	if err == nil && u.Scheme != "file" && u.Scheme != "http" && u.Scheme != "https" {
		err = fmt.Errorf("%s has no scheme that can be read: use a URL with https or file", address)
	}
	return u, err
}

// reach reads from the database when it was changed. It uses the proxy of the environment, as govulncheck does.
func reach(ctx context.Context, u *url.URL) (db database, err error) {
	if u.Scheme == "file" {
		info, err := os.Stat(filepath.FromSlash(u.Path))
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no folder", u.Path)
		}
		return database{url: u.String()}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("%s has not answered within %s", u, reachTimeout))
	defer cancel()
	modified, err := modifiedAt(ctx, u.JoinPath("index", "db.json.gz").String())
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return db, err
	}
	return database{url: u.String(), version: modified.UTC().Format(time.DateOnly)}, nil
}

func modifiedAt(ctx context.Context, address string) (at time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return at, err
	}
	res, err := (&http.Client{}).Do(req)
	if err != nil {
		return at, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return at, fmt.Errorf("%s answers %s", address, res.Status)
	}
	// A proxy may answer everything with a page of its own.
	var index struct{ Modified time.Time }
	unzipped, err := gzip.NewReader(res.Body)
	if err == nil {
		err = json.NewDecoder(unzipped).Decode(&index)
	}
	if err == nil && index.Modified.IsZero() {
		err = errors.New("it has no time")
	}
	if err != nil {
		return at, fmt.Errorf("%s is not the index of a database: %w", address, err)
	}
	return index.Modified, nil
}

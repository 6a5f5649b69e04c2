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
	// reachTimeout limits the test whether a database answers, because a network may drop packets.
	reachTimeout = 5 * time.Second
)

// database is a vulnerability database that can be read.
type database struct {
	url string
	// version is the date of its last change. It is empty if the database does not have it.
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
		err = fmt.Errorf("%s does not have a supported scheme: use a URL with https or file", address)
	}
	return u, err
}

// reach reads the time of the database's last change. It uses the proxy of the environment, as govulncheck does.
func reach(ctx context.Context, u *url.URL) (db database, err error) {
	if u.Scheme == "file" {
		info, err := os.Stat(filepath.FromSlash(u.Path))
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a folder", u.Path)
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
	// A proxy may answer every request with its own page.
	var index struct{ Modified time.Time }
	unzipped, err := gzip.NewReader(res.Body)
	if err == nil {
		err = json.NewDecoder(unzipped).Decode(&index)
	}
	if err == nil && index.Modified.IsZero() {
		err = errors.New("the field modified is missing")
	}
	if err != nil {
		return at, fmt.Errorf("%s is not the index of a database: %w", address, err)
	}
	return index.Modified, nil
}

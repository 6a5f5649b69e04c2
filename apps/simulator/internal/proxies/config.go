package proxies

import (
	"fmt"
	"path/filepath"
	"strings"
)

// body is the immediate answer of instances: a small completion.
const body = `{"id":"chatcmpl-1","object":"chat.completion","model":"echo","choices":[{"index":0,"message":{"role":"assistant","content":"one two three four five"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}`

// nginxArgs returns how nginx is started in the foreground, with all its files below dir/name.
func nginxArgs(dir, name, http string) configured {
	home := filepath.Join(dir, name)
	file := filepath.Join(home, "nginx.conf")
	// Two workers for two cores. As root they can use a folder that only root may use.
	text := fmt.Sprintf(`daemon off;
user root;
worker_processes 2;
pid %[1]s/pid;
error_log stderr error;
events { worker_connections 4096; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  keepalive_requests 1000000;
%[2]s}
`, home, http)
	return configured{file: file, text: text, args: []string{"-p", home, "-c", file}}
}

func instancesConfig(listen []string) string {
	return fmt.Sprintf("  server {\n    %s\n    location / { default_type application/json; return 200 '%s'; }\n  }\n", each("listen %s;", listen), body)
}

func nginxConfig(at [2]string, answering, streaming []string) string {
	var text strings.Builder
	for i, instances := range [][]string{answering, streaming} {
		fmt.Fprintf(&text, `  upstream u%[1]d { %[2]s keepalive 256; }
  server {
    listen %[3]s;
    location / {
      proxy_pass http://u%[1]d;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering off;
    }
  }
`, i, each("server %s;", instances), at[i])
	}
	return text.String()
}

func haproxyConfig(at [2]string, answering, streaming []string) string {
	var text strings.Builder
	text.WriteString(`global
  nbthread 2
  maxconn 8192
defaults
  mode http
  option forwardfor
  http-reuse always
  timeout connect 5s
  timeout client 1m
  timeout server 5m
`)
	for i, instances := range [][]string{answering, streaming} {
		fmt.Fprintf(&text, "frontend f%[1]d\n  bind %[2]s\n  default_backend b%[1]d\nbackend b%[1]d\n  balance roundrobin\n", i, at[i])
		for n, instance := range instances {
			fmt.Fprintf(&text, "  server s%d %s\n", n, instance)
		}
	}
	return text.String()
}

func each(format string, of []string) string {
	parts := make([]string, len(of))
	for i, s := range of {
		parts[i] = fmt.Sprintf(format, s)
	}
	return strings.Join(parts, " ")
}

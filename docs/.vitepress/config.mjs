import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'
import { check } from './check.mjs'
import { addresses, resolve, root, sidebar } from './pages.mjs'

// slugs returns the anchor of a heading as GitHub makes it, so that one link works on both.
const slug = (text) =>
  text
    .trim()
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replace(/\s/g, '-')

// Links between files of the repository become links between pages, or into the
// repository. It runs before VitePress's own rule, which then sees addresses of the site.
function links(md) {
  md.core.ruler.push('repository-links', (state) => {
    const page = path.relative(root, state.env.realPath ?? state.env.path)
    for (const block of state.tokens) {
      for (const token of block.children ?? []) {
        const href = token.type === 'link_open' ? token.attrGet('href') : null
        if (href !== null && !/^[a-z]+:/.test(href)) token.attrSet('href', resolve(page, href))
      }
    }
  })
}

// A capstan's drum, so that no file has to be fetched.
const icon = 'data:image/svg+xml,' + encodeURIComponent(
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#3451b2"/>' +
  '<path d="M7 9h18M7 23h18M11 9c3 5 3 9 0 14M21 9c-3 5-3 9 0 14" stroke="#fff" stroke-width="2.5" fill="none" stroke-linecap="round"/></svg>')

// Pages above docs import Vue, which is in docs/node_modules.
const fromHere = {
  name: 'from-docs',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (!/^vue(\/|$)/.test(id) || !importer || importer.startsWith(path.join(root, 'docs') + path.sep)) return null
    return this.resolve(id, path.join(root, 'docs/package.json'), { ...options, skipSelf: true })
  },
}

export default defineConfig({
  title: 'Windlass',
  description: 'A pull-based, multi-region control plane for GPU inference',
  head: [['link', { rel: 'icon', href: icon }]],
  srcDir: root,
  srcExclude: fs.readdirSync(root).filter((entry) => entry !== 'docs' && !(entry in addresses)).flatMap((entry) => [entry, entry + '/**']),
  rewrites: addresses,
  outDir: '../.cache/site',
  cacheDir: '../.cache/vitepress',
  metaChunk: true,
  vite: { plugins: [fromHere] },
  markdown: { anchor: { slugify: slug }, config: links },
  themeConfig: {
    nav: [
      { text: 'Guides', link: '/docs.html' },
      { text: 'Troubleshooting', link: '/guides/troubleshooting.html' },
      { text: 'Reference', link: '/reference/' },
    ],
    sidebar: sidebar(),
    outline: { level: [2, 3] },
    search: { provider: 'local' },
    socialLinks: [{ icon: 'github', link: 'https://github.com/windlass-run/windlass' }],
  },
  buildEnd: (site) => check(site.outDir),
})

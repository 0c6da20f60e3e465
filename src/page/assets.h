/* Files inside the program, made by embed.cmake: the style sheets and scripts of pages, and the
 * module of PyTorch that `export` writes. */
#ifndef SMALLWORLD_PAGE_ASSETS_H
#define SMALLWORLD_PAGE_ASSETS_H

extern const char chart_css[]; /* colours and charts; used by .svg files too */
extern const char page_css[];
extern const char chart_js[];  /* shows charts' values under the pointer */
extern const char show_js[];   /* colours text */
extern const char lstm_py[];   /* python/smallworld/lstm.py */
extern const char wiring_js[]; /* tells a node's neighbours */

#endif
